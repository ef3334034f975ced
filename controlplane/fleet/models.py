"""What exists: nodes, GPUs, models, pools, engines; and what was asked for: operations and audit.

What is desired is written by `control.actions`; what was observed by `control.record`; and what the loop does about the
difference by `control.apply`, `control.publish` and `control.operations`.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class Node(models.Model):
    """A machine with an agent."""

    name = models.SlugField(max_length=63, unique=True)
    labels = models.JSONField(default=dict, blank=True)
    """The operator's; they win over those its agent tells."""
    cordoned = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    # observed
    agent_labels = models.JSONField(default=dict, blank=True)
    address = models.CharField(max_length=255, blank=True)
    network_gbps = models.FloatField(default=100.0)
    agent_boot = models.CharField(max_length=64, blank=True)
    agent_booted_at = models.FloatField(default=0.0)
    """Unix seconds on the node's clock: only ever compared with what the same node tells."""
    seen_at = models.DateTimeField(null=True, blank=True)
    lost = models.BooleanField(default=False)
    broker_sha256 = models.CharField(max_length=64, blank=True, db_default="")
    """Of the password of its own user of the broker, since it joined with a token. Empty: it has the fleet's."""

    def __str__(self) -> str:
        return self.name


class JoinToken(models.Model):
    """Lets one machine become a node, once. The token itself is stored nowhere, nor a hash of it: it follows from the fleet
    secret and `salt` (core.joining)."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="join_tokens")
    salt = models.CharField(max_length=64)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    claim = models.CharField(max_length=64, blank=True)
    """Of the agent that used it: it alone may ask again, if the answer was lost."""

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.node.name}/{self.pk}"


class Gpu(models.Model):
    """One accelerator on a node. Rows follow the agent's fact."""

    uuid = models.CharField(max_length=80, primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    kind = models.CharField(max_length=32)
    memory_bytes = models.BigIntegerField()
    simulated = models.BooleanField(default=False)

    class Meta:
        ordering = ["node__name", "index"]


class Team(models.Model):
    """People who own models. A member with the role `owner` may change the models whose `team` is this one's name."""

    name = models.CharField(max_length=63, unique=True)
    members = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True, related_name="teams")
    gpu_quota = models.PositiveIntegerField(null=True, blank=True)
    """GPUs that its models may hold together; empty: no limit of its own."""

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Mode(models.TextChoices):
    MONOLITHIC = "monolithic", _("Monolithic")
    CONDITIONAL = "conditional", _("Conditional")
    DISAGGREGATED = "disaggregated", _("Disaggregated")


class Role(models.TextChoices):
    PREFILL = "prefill", _("Prefill")
    DECODE = "decode", _("Decode")
    MIXED = "mixed", _("Mixed")


class Model(models.Model):
    """A served model: what routers offer under a name."""

    name = models.CharField(max_length=128, unique=True)
    aliases = models.JSONField(default=list, blank=True)
    source = models.CharField(max_length=512)
    config = models.JSONField()
    engine_kind = models.CharField(max_length=16)
    engine_args = models.JSONField(default=dict, blank=True)
    team = models.CharField(max_length=63, blank=True)
    """Name of the team that owns it; empty: operators alone."""
    version = models.PositiveBigIntegerField(default=1)
    """Rises with every change of what is desired of this model, its pools and its canary: what a page or client has read
    is stale once it differs."""
    mode = models.CharField(max_length=16, choices=Mode.choices, default=Mode.MONOLITHIC)
    """Desired."""
    served_mode = models.CharField(max_length=16, choices=Mode.choices, default=Mode.MONOLITHIC)
    """What the routing table says. It follows `mode` once the engines for that are ready and verified."""
    frozen_until = models.DateTimeField(null=True, blank=True)
    """Until then no change is begun; healing goes on."""
    frozen_reason = models.CharField(max_length=500, blank=True)
    launch_number = models.PositiveIntegerField(default=1)
    """Rises with each roll-out: engines of an earlier one are replaced even if their arguments are the same."""
    retiring = models.BooleanField(default=False)
    """It is offered no more and its engines are being stopped; then the row goes."""
    connector = models.CharField(max_length=16, default="nixl")
    kv_lease_s = models.FloatField(default=30.0)
    block_size = models.PositiveIntegerField(default=16)
    kv_bytes_per_token = models.BigIntegerField(default=0)
    kv_fixed_bytes = models.BigIntegerField(default=0)
    kv_window_bytes_per_token = models.BigIntegerField(default=0)
    kv_window_tokens = models.BigIntegerField(default=0)
    max_model_len = models.PositiveIntegerField(default=0)
    on_prefill_loss = models.CharField(max_length=8, default="retry")
    strict = models.BooleanField(default=False)
    conditional_min_uncached_tokens = models.PositiveIntegerField(default=512)
    conditional_min_uncached_ratio = models.FloatField(default=0.3)
    slo_ttft_ms = models.FloatField(default=2000.0)
    slo_itl_ms = models.FloatField(default=50.0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["created_at", "id"]

    def __str__(self) -> str:
        return self.name


class Grant(models.Model):
    """What an owner of the model's team may do with it, this user may too, in whatever team they are."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="grants")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="grants")
    created_at = models.DateTimeField(auto_now_add=True)
    until = models.DateTimeField(null=True, blank=True)
    """From then on it is worth nothing; None: until it is taken back."""
    given_by = models.CharField(max_length=150, blank=True, db_default="")
    reason = models.CharField(max_length=500, blank=True, db_default="")

    class Meta:
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["model", "user"], name="grant_once_per_model_and_user")]

    def is_good(self, now: datetime) -> bool:
        """As `good_grants` has it."""
        return self.until is None or self.until > now


def good_grants(now: datetime) -> models.Q:
    """Grants that are worth something then."""
    return models.Q(until=None) | models.Q(until__gt=now)


MAIN = "main"
"""The arm of a model's engines that serves everybody but a canary's sessions."""
CANARY = "canary"


class Pool(models.Model):
    """All engines of one model, role and arm, and how many there should be."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="pools")
    role = models.CharField(max_length=8, choices=Role.choices)
    arm = models.CharField(max_length=32, default=MAIN)
    desired_engines = models.PositiveIntegerField(default=0)
    floor = models.PositiveIntegerField(default=1)
    """Serving engines that a change leaves in a pool that has them, while it runs."""
    tensor_parallel = models.PositiveSmallIntegerField(default=1)
    pipeline_parallel = models.PositiveSmallIntegerField(default=1)
    """Stages of each engine, each on `tensor_parallel` GPUs of one node."""
    gpu_kinds = models.JSONField(default=list, blank=True)
    node_labels = models.JSONField(default=dict, blank=True)

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    class Meta:
        ordering = ["model_id", "id"]
        constraints = [models.UniqueConstraint(fields=["model", "role", "arm"], name="one_pool_per_model_role_and_arm")]


class Engine(models.Model):
    """One vLLM (or simulated) server. `wanted` is desired, everything from `state` on is observed."""

    id = models.CharField(max_length=16, primary_key=True)
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="engines")
    role = models.CharField(max_length=8, choices=Role.choices)
    number = models.PositiveIntegerField()
    """Rises per model; with the role's letter it makes the label (P1, D3, M2)."""
    kind = models.CharField(max_length=16)
    tensor_parallel = models.PositiveSmallIntegerField(default=1)
    wanted = models.BooleanField(default=True)
    spec_generation = models.PositiveBigIntegerField(default=1)
    arm = models.CharField(max_length=32, default=MAIN)
    weight = models.FloatField(default=1.0)
    held = models.BooleanField(default=False)
    """An operator keeps it out of the routing table; it runs on."""
    launch = models.JSONField(default=dict, blank=True)
    """What it is started with (core.launch): a restart during a roll-out is of the version that it had."""
    next_role = models.CharField(max_length=8, blank=True)
    """The role it is being given without a restart; empty: none. With `next_arm` it counts as a member of that pool."""
    next_arm = models.CharField(max_length=32, blank=True)
    move_phase = models.CharField(max_length=16, blank=True)
    """How far that is: one of core.retask.PHASES."""
    move_since = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=16, default="planned")
    state_since = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=500, blank=True)
    incarnation = models.PositiveBigIntegerField(default=0)
    url = models.CharField(max_length=255, blank=True)
    compat = models.CharField(max_length=64, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    """Consecutive failed starts or crashes; back to 0 once it was ready for a minute."""
    retry_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["model_id", "number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="engine_number_per_model")]

    @property
    def label(self) -> str:
        return f"{self.role[0].upper()}{self.number}"


class Rank(models.Model):
    """One process of an engine on one node. Its GPUs hold the reservation: a GPU belongs to at most one rank."""

    engine = models.ForeignKey(Engine, on_delete=models.CASCADE, related_name="ranks")
    index = models.PositiveSmallIntegerField(default=0)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="ranks")

    class Meta:
        ordering = ["engine_id", "index"]
        constraints = [models.UniqueConstraint(fields=["engine", "index"], name="rank_per_engine")]


class Reservation(models.Model):
    """This GPU is taken by this rank. Primary key = the GPU, so two ranks can never hold one."""

    gpu = models.OneToOneField(Gpu, on_delete=models.PROTECT, primary_key=True, related_name="reservation")
    rank = models.ForeignKey(Rank, on_delete=models.CASCADE, related_name="reservations")


class Pair(models.Model):
    """What is known of handing KV over from one engine to another, of these two incarnations alone."""

    prefill = models.ForeignKey(Engine, on_delete=models.CASCADE, related_name="pairs_as_prefill")
    prefill_incarnation = models.PositiveBigIntegerField()
    decode = models.ForeignKey(Engine, on_delete=models.CASCADE, related_name="pairs_as_decode")
    decode_incarnation = models.PositiveBigIntegerField()
    state = models.CharField(max_length=16, default="asked")
    """asked: a probe is to be made; verified: KV was seen to move; failed: it was not, `reason` says what was seen."""
    kv_bytes = models.BigIntegerField(null=True, blank=True)
    """What the probe moved by the engines' own counters."""
    handoff_ms = models.FloatField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["prefill", "decode"], name="one_row_per_pair")]


class Canary(models.Model):
    """A trial of another mode on a part of a model's sessions, and its verdict. At most one of a model runs."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="canaries")
    operation = models.ForeignKey("Operation", null=True, blank=True, on_delete=models.SET_NULL, related_name="canaries")
    mode = models.CharField(max_length=16, choices=Mode.choices)
    shared = models.BooleanField(default=False)
    """The arm has no engines of its own: sessions only, on the same engines."""
    state = models.CharField(max_length=16, default="running")
    """One of core.lifecycle.CANARY."""
    share = models.FloatField()
    """Of sessions, as the routing table has it; with engines of its own it follows their capacity."""
    steps = models.JSONField(default=list)
    """Shares still to come, rising; after the last the mode is the model's."""
    guardrails = models.JSONField(default=dict)
    """Limits (core.canary.Guardrails)."""
    verdict = models.JSONField(default=dict)
    """The test's numbers so far, or at the end (core.canary.Verdict)."""
    evidence = models.JSONField(default=dict, blank=True)
    """What the verdict is made from, and how far the routers' reports were read (control.canaries.Sampling)."""
    paused = models.BooleanField(default=False)
    """Another operation of the model runs: nothing is sampled."""
    started_at = models.DateTimeField(auto_now_add=True)
    step_since = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model"], condition=models.Q(ended_at__isnull=True), name="one_running_canary_per_model"
            )
        ]


class CanarySession(models.Model):
    """What one session has shown, while a canary runs (core.trial.Session). Counted once, and kept for an hour so that it
    is known again."""

    canary = models.ForeignKey(Canary, on_delete=models.CASCADE, related_name="sessions")
    session = models.CharField(max_length=16)
    in_canary = models.BooleanField()
    seen_at = models.DateTimeField()
    over = models.BooleanField(default=False)
    failed = models.BooleanField(default=False)
    kv_lost = models.BooleanField(default=False)
    fell_back = models.BooleanField(default=False)
    ttft_ms = models.FloatField(null=True, blank=True)
    itl_ms = models.FloatField(null=True, blank=True)
    counted = models.BooleanField(default=False)

    class Meta:
        ordering = ["canary_id", "seen_at", "id"]
        constraints = [models.UniqueConstraint(fields=["canary", "session"], name="session_once_per_canary")]
        indexes = [models.Index(fields=["canary", "counted", "seen_at"])]


class Incarnation(models.Model):
    """The history of an engine's starts."""

    engine = models.ForeignKey(Engine, on_delete=models.CASCADE, related_name="incarnations")
    number = models.PositiveBigIntegerField()
    started_at = models.DateTimeField()
    ready_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["engine", "number"], name="incarnation_per_engine")]


def all_models() -> list[str]:
    return ["*"]


class InferenceKey(models.Model):
    """What lets a client use the router. The key itself is shown once and stored nowhere."""

    name = models.CharField(max_length=63, unique=True)
    team = models.CharField(max_length=63)
    sha256 = models.CharField(max_length=64, unique=True)
    model_names = models.JSONField(default=all_models)
    """Names or aliases, or `*`."""
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    max_priority = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked = models.BooleanField(default=False)

    class Meta:
        ordering = ["id"]
        constraints = [
            # Routers refuse a whole table for one wrong digest.
            models.CheckConstraint(condition=models.Q(sha256__regex="^[0-9a-f]{64}$"), name="sha256_of_a_key")
        ]

    def __str__(self) -> str:
        return self.name


class FormerSecret(models.Model):
    """What an inference key was before it was rotated: clients may go on with it until then. The row stays, so that what was
    used with it is the key's."""

    key = models.ForeignKey(InferenceKey, on_delete=models.CASCADE, related_name="former_secrets")
    sha256 = models.CharField(max_length=64, unique=True)
    until = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=models.Q(sha256__regex="^[0-9a-f]{64}$"), name="sha256_of_a_former_key")
        ]


class Terms(models.TextChoices):
    OWNED = "owned", _("Owned")
    HOURLY = "hourly", _("Rented by the hour")


class GpuPrice(models.Model):
    """What an hour of one GPU of a kind costs from a whole hour on, until the next row of its kind. A kind without a row has
    the list price of core.gpus, which is a guess."""

    kind = models.CharField(max_length=32)
    terms = models.CharField(max_length=8, choices=Terms.choices)
    per_hour = models.DecimalField(max_digits=13, decimal_places=6)
    """US dollars."""
    valid_from = models.DateTimeField()

    class Meta:
        ordering = ["kind", "-valid_from"]
        constraints = [models.UniqueConstraint(fields=["kind", "valid_from"], name="one_price_of_a_kind_at_a_time")]


class TableState(models.Model):
    """One row (id 1): the newest routing table. Epoch rises when a database is restored."""

    epoch = models.PositiveBigIntegerField(default=0)
    generation = models.PositiveBigIntegerField(default=0)
    document = models.JSONField(null=True, blank=True)
    published_at = models.DateTimeField(null=True, blank=True)


class Operation(models.Model):
    """One change that somebody asked for. `state` is one of core.lifecycle.OPERATION."""

    verb = models.CharField(max_length=32)
    model = models.ForeignKey(Model, null=True, blank=True, on_delete=models.SET_NULL, related_name="operations")
    state = models.CharField(max_length=16, default="pending")
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=500, blank=True)
    before = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    outcome = models.CharField(max_length=500, blank=True)
    undoes = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="undone_by")
    """The operation that this one takes back."""
    measured = models.JSONField(default=dict, blank=True)
    """Figures of the time before and after it (telemetry; filled in once that time has passed)."""
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["state"]), models.Index(fields=["-created_at"])]


class Step(models.Model):
    """A part of an operation as carried out by the loop. `state` is one of core.lifecycle.STEP."""

    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="steps")
    index = models.PositiveIntegerField()
    verb = models.CharField(max_length=32)
    role = models.CharField(max_length=8, blank=True)
    """start, stop: the pool whose engine is meant; retask: the new role."""
    arm = models.CharField(max_length=32, default=MAIN)
    """Of that pool."""
    engine = models.CharField(max_length=16, blank=True)
    """Empty until the loop has chosen one."""
    state = models.CharField(max_length=16, default="waiting")
    reason = models.CharField(max_length=500, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["operation_id", "index"]
        constraints = [models.UniqueConstraint(fields=["operation", "index"], name="step_per_operation")]


class AuditEntry(models.Model):
    """Append-only: the app's database role may neither update nor delete here."""

    at = models.DateTimeField(auto_now_add=True)
    actor = models.CharField(max_length=150)
    verb = models.CharField(max_length=32)
    subject = models.CharField(max_length=255)
    reason = models.CharField(max_length=500, blank=True)
    before = models.JSONField(default=dict, blank=True)
    after = models.JSONField(default=dict, blank=True)
    operation = models.ForeignKey(Operation, null=True, blank=True, on_delete=models.PROTECT, related_name="audit")

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["subject", "-id"])]
