"""What the advisor answers, as the API tells it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.fleet.models import Mode, Role
from controlplane.physics.advicedesk import Seen

Plain = serializers.Serializer[Any]
FIGURE: dict[str, Any] = {"allow_null": True}


def _text(help_text: str = "") -> Any:
    return serializers.CharField(help_text=help_text)


def _figure(help_text: str = "", **options: Any) -> Any:
    return serializers.FloatField(help_text=help_text, **options)


class CheckDocument(Plain):
    """One of the five checks, or the rule for short prompts."""

    name = _text("decode_share, kv_network, prefix_hits, gpus, transport or short_prompts.")
    title = _text()
    state = _text("pass, fail or unknown.")
    value = _figure("In `unit`; null: not known.", **FIGURE)
    threshold = _figure("In `unit`.")
    unit = _text("share, bytes, tokens, gpus or transport (1: RDMA).")
    value_text = _text()
    threshold_text = _text()
    sentence = _text("What it means.")
    source = _text("Where the value comes from.")
    window_s = _figure("That it was measured over; null: it was given.", **FIGURE)
    samples = serializers.IntegerField(allow_null=True, help_text="Requests behind it; null: it was given.")
    confidence = _figure("0.5 to 1 that the true mean is on this side of the threshold.", **FIGURE)


class ModeForecastDocument(Plain):
    """What a mode would do on the same GPUs and traffic. Latencies are those at `at_rate`."""

    mode = serializers.ChoiceField(choices=Mode.choices)
    layout = _text("As `manage.py forecast --layout` takes it; empty: there is none that keeps the targets.")
    requests_per_second = _figure("The highest rate within both targets.")
    low = _figure("Of its 95 % interval.")
    high = _figure()
    at_rate = _figure(**FIGURE)
    ttft_p99_ms = _figure(**FIGURE)
    itl_p99_ms = _figure(**FIGURE)
    attained = _figure("Share of requests within both targets.", **FIGURE)
    cost_per_million_tokens = _figure("US$ per million output tokens.", **FIGURE)
    notes = serializers.ListField(child=serializers.CharField())


class GainDocument(Plain):
    """What splitting serves more than monolithic serving on the same GPUs: 0.24 is 24 % more; null is without limit."""

    mode = serializers.ChoiceField(choices=Mode.choices)
    ratio = _figure(**FIGURE)
    low = _figure("The simulation's interval and the model's own error.", **FIGURE)
    high = _figure(**FIGURE)
    sentence = _text()


class FlipDocument(Plain):
    """The nearest value of one input that changes the verdict, all else as it is."""

    input = _text()
    now = _text()
    at = _text()
    value = serializers.JSONField(help_text="`at` as a number, or a transport.")
    verdict = _text()
    sentence = _text()


class TransferDocument(Plain):
    """One mean prompt's KV and its time on the wire."""

    tokens = serializers.IntegerField()
    kv_bytes_per_token = serializers.IntegerField()
    kv_bytes_per_request = serializers.IntegerField()
    wire_ms_at_100_gbps = _figure()
    wire_ms_at_400_gbps = _figure()
    wire_ms = _figure("On the network of the question.")


class SloDocument(Plain):
    ttft_ms = _figure()
    itl_ms = _figure()


class InputsDocument(Plain):
    """What the advice is for."""

    gpus = serializers.IntegerField()
    prefill_gpu = _text()
    decode_gpu = _text()
    network_gbps = _figure()
    transport = _text()
    input_tokens = _figure()
    output_tokens = _figure()
    prefix_hit = _figure()
    requests = serializers.IntegerField(allow_null=True, help_text="Of the trace.")
    slo: Any = SloDocument()
    prices = serializers.DictField(child=serializers.FloatField(), help_text="US$ of one GPU for one hour, by kind.")
    seeds = serializers.IntegerField(help_text="Draws that were simulated; 0: it is the closed form's.")


def _figures(help_text: str = "", **options: Any) -> Any:
    return serializers.ListField(child=serializers.FloatField(**options), help_text=help_text)


class KvTermsDocument(Plain):
    """Twice the product of these are the bytes per token."""

    layers = serializers.IntegerField()
    kv_heads = serializers.IntegerField()
    head_dim = serializers.IntegerField()
    element_bytes = serializers.IntegerField()


class LinkDocument(Plain):
    """What a network makes of it."""

    gbps = _figure()
    ttft_ms = _figures("Prefill and transfer, by `tokens`.")


class FirstTokenDocument(Plain):
    """The least time to a first token on idle engines, by length of the prompt."""

    engine = _text("That prefills.")
    tokens = serializers.ListField(child=serializers.IntegerField())
    prefill_ms = _figures()
    links = LinkDocument(many=True)
    mean_tokens = serializers.IntegerField()
    mean_prefill_ms = _figure("Of the mean prompt.")


class ModeByRateDocument(Plain):
    """Of a mode's best layout; null where it cannot keep up."""

    mode = serializers.ChoiceField(choices=Mode.choices)
    layout = _text()
    ttft_p99_ms = _figures(allow_null=True)
    itl_p99_ms = _figures(allow_null=True)


class ByRateDocument(Plain):
    """Latencies by rate."""

    rates = _figures("Requests/s.")
    modes = ModeByRateDocument(many=True)


class SplitPoolDocument(Plain):
    """So many engines of a role."""

    role = serializers.ChoiceField(choices=Role.choices)
    engines = serializers.IntegerField()
    gpus_per_engine = serializers.IntegerField()


class SplitDocument(Plain):
    """One layout at the rate. Latencies are null where it cannot keep up."""

    mode = serializers.ChoiceField(choices=Mode.choices)
    pools = SplitPoolDocument(many=True)
    gpus = serializers.IntegerField()
    ttft_p99_ms = _figure(**FIGURE)
    itl_p99_ms = _figure(**FIGURE)
    cost_per_hour = _figure("US$.")
    cost_per_million_tokens = _figure("US$ per million output tokens.", **FIGURE)
    within = serializers.BooleanField(help_text="Both targets are kept.")


class SplitsDocument(Plain):
    """Layouts that nothing beats in both cost and latency, the cheapest first."""

    requests_per_second = _figure()
    given = serializers.BooleanField(
        help_text="False: what monolithic serving reaches on these GPUs, else most of the best."
    )
    layouts = SplitDocument(many=True)


class ChartsDocument(Plain):
    """Closed form, null where no layout keeps the targets at any rate."""

    first_token: Any = FirstTokenDocument(allow_null=True)
    by_rate: Any = ByRateDocument(allow_null=True)
    splits: Any = SplitsDocument(allow_null=True)


class OfflineAdviceDocument(Plain):
    """The advice. Shares are 0..1."""

    model = _text()
    verdict = _text("yes, no, not_enough_data or try_canary.")
    mode = serializers.ChoiceField(choices=Mode.choices, help_text="The one to run.")
    sentence = _text("The verdict and its weightiest reason.")
    checks = CheckDocument(many=True)
    gain: Any = GainDocument(allow_null=True)
    forecasts = ModeForecastDocument(many=True)
    flips = FlipDocument(many=True)
    transfer: Any = TransferDocument()
    inputs: Any = InputsDocument()
    charts: Any = ChartsDocument()
    kv_terms: Any = KvTermsDocument(allow_null=True, help_text="null: its layers differ or keep something else.")


class AskedDocument(serializers.Serializer[Seen]):
    """A question to the advisor and what is known of it."""

    id = _text("Of the question: the same for the same one.")
    state = _text(
        "waiting, working, done, or failed, where the closed form's advice is all there is: it may be asked again."
    )
    advice: Any = OfflineAdviceDocument(allow_null=True, help_text="While it works: the closed form's, once it is there.")
    what = _text("What it works at.")
    share = _figure("Of the simulation that is done.", **FIGURE)
    reason = _text("Why the advice is the closed form's, though more was asked for.")
    ahead = serializers.IntegerField(help_text="Questions that come first.")
