"""Costs, usage and prices as the API tells them. Read-only. Money is whole US cents, null where it is not known."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


def _cents(help_text: str = "") -> serializers.IntegerField:
    return serializers.IntegerField(allow_null=True, help_text=help_text)


def _dollars(help_text: str) -> serializers.FloatField:
    return serializers.FloatField(allow_null=True, help_text=help_text)


class PriceDocument(serializers.Serializer[Any]):
    """What one GPU of a kind costs an hour from a time on."""

    number = serializers.IntegerField(allow_null=True, help_text="What removes it; null: a list price.")
    kind = serializers.CharField()
    per_hour = serializers.CharField(help_text="US dollars, as it was written.")
    terms = serializers.ChoiceField(choices=["owned", "hourly"])
    valid_from = serializers.DateTimeField(allow_null=True, help_text="null: the list price of a kind that has no other.")
    valid_until = serializers.DateTimeField(allow_null=True, help_text="When the next price of the kind begins.")
    guess = serializers.BooleanField(help_text="Nobody gave it.")
    gpus = serializers.IntegerField(help_text="Of this kind, that the fleet has now.")


class PriceList(serializers.Serializer[Any]):
    """The whole price book."""

    items = PriceDocument(many=True)


class CostGap(serializers.Serializer[Any]):
    """Hours of which nothing is known of any GPU: in no sum."""

    since = serializers.FloatField(help_text="Unix seconds.")
    until = serializers.FloatField(help_text="Unix seconds.")


class CostLine(serializers.Serializer[Any]):
    """What one key's traffic of one model cost on a day. `served` false: the model served nothing that day, its GPUs are
    nobody's; model "" too: GPUs in no pool."""

    day = serializers.DateField()
    model = serializers.CharField()
    team = serializers.CharField(help_text="Empty: without a key.")
    key = serializers.CharField(help_text="Its name; the beginning of its SHA-256 if that key is not known any more.")
    served = serializers.BooleanField()
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField(help_text="Of the prompt tokens, found in a cache.")
    cents = _cents()


class CostPool(serializers.Serializer[Any]):
    """A pool's GPUs of one kind by what they did: five kinds of hours and of cents that add up to the whole."""

    model = serializers.CharField(help_text="Empty: GPUs in no pool.")
    role = serializers.CharField()
    kind = serializers.CharField()
    gpu_hours = serializers.FloatField()
    busy_hours = serializers.FloatField()
    underused_hours = serializers.FloatField(help_text="Requests ran and did not fill the GPU.")
    idle_hours = serializers.FloatField(help_text="Ready, with no request.")
    stranded_hours = serializers.FloatField(help_text="Its engine could not serve, or it was in no pool.")
    unknown_hours = serializers.FloatField(help_text="At work, its activity not told.")
    cents = _cents()
    busy_cents = _cents()
    underused_cents = _cents()
    idle_cents = _cents()
    stranded_cents = _cents()
    unknown_cents = _cents()
    guess = serializers.BooleanField(help_text="At a list price that nobody gave.")
    unpriced = serializers.BooleanField(help_text="This kind of GPU has no price.")


class CostModel(serializers.Serializer[Any]):
    """A model: its pools' cents add up to `cents`."""

    model = serializers.CharField()
    cents = _cents()
    prefill_cents = _cents()
    decode_cents = _cents()
    mixed_cents = _cents()
    idle_cents = _cents("Of `cents`.")
    stranded_cents = _cents("Of `cents`.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    per_million_input = _dollars("US$ of prefill pools per million prompt tokens; null where mixed pools served.")
    per_million_output = _dollars("US$ of decode pools per million output tokens; null where mixed pools served.")
    per_million_tokens = _dollars("US$ of all its GPUs per million output tokens.")
    gaps = serializers.ListField(child=serializers.CharField(), help_text="Why figures are not known.")


class Statement(serializers.Serializer[Any]):
    """Models and what is unassigned, pools, and lines each add up to `total_cents`."""

    total_cents = serializers.IntegerField()
    unassigned_cents = serializers.IntegerField(help_text="GPUs in no pool.")
    models = CostModel(many=True)
    pools = CostPool(many=True)
    lines = CostLine(many=True)
    guess = serializers.BooleanField(help_text="A list price that nobody gave is among those used.")
    gaps = serializers.ListField(child=serializers.CharField())


class _Span(serializers.Serializer[Any]):
    month = serializers.CharField()
    zone = serializers.CharField()
    since = serializers.FloatField(help_text="Unix seconds.")
    until = serializers.FloatField(allow_null=True, help_text="Up to where hours are made; null: none is.")
    ends = serializers.FloatField(help_text="End of the month, Unix seconds.")


class CostsDocument(_Span):
    """What a month cost."""

    recorded = serializers.FloatField(allow_null=True, help_text="Share of the time in which any GPU told anything.")
    gaps = CostGap(many=True)
    statement = Statement()


class UsageItem(serializers.Serializer[Any]):
    """What one key used of one model."""

    team = serializers.CharField(help_text="Empty: without a key.")
    key = serializers.CharField()
    model = serializers.CharField()
    requests = serializers.IntegerField()
    estimated = serializers.IntegerField(help_text="Requests of those that others' records stand for; 0: all was counted.")
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    cents = _cents()


class UsageDocument(_Span):
    """What API keys used in a month."""

    items = UsageItem(many=True)


class WhatIfDocument(serializers.Serializer[Any]):
    """US dollars. Savings are negative where it costs more."""

    now_per_hour = serializers.FloatField()
    then_per_hour = serializers.FloatField()
    saved_per_hour = serializers.FloatField()
    saved_per_month = serializers.FloatField(help_text="Of 730 hours.")
    per_million_tokens_now = _dollars("Output tokens of the last hour.")
    per_million_tokens_then = _dollars("Output tokens of the last hour.")
    sentence = serializers.CharField()


class SplitCostDocument(serializers.Serializer[Any]):
    """What a model costs now and at another split."""

    model = serializers.CharField()
    now = serializers.DictField(child=serializers.IntegerField(), help_text="GPUs by kind.")
    then = serializers.DictField(child=serializers.IntegerField(), help_text="GPUs by kind.")
    cost = WhatIfDocument()
    gaps = serializers.ListField(child=serializers.CharField(), help_text="What is a guess or not known.")
