"""Every name that a user can script against, each with one line for readers.

Labels, annotations, conditions, states, reasons, events, metrics, environment variables, ports, exit codes and
admission codes live here and nowhere else. `docs/reference.md` is generated from this file (`make reference`).
"""

from enum import IntEnum, StrEnum
from typing import Final, Self

GROUP: Final = "bireme.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "InferenceDeployment"


class Word(StrEnum):
    """A string constant that carries its own line of documentation in ``about``."""

    about: str

    def __new__(cls, value: str, about: str) -> Self:
        word = str.__new__(cls, value)
        word._value_ = value
        word.about = about
        return word


class Number(IntEnum):
    """An integer constant that carries its own line of documentation in ``about``."""

    about: str

    def __new__(cls, value: int, about: str) -> Self:
        number = int.__new__(cls, value)
        number._value_ = value
        number.about = about
        return number


class Label(Word):
    """Labels on pods and services."""

    DEPLOYMENT = "bireme.dev/deployment", "Name of the InferenceDeployment that the pod belongs to."
    GROUP_INDEX = "bireme.dev/group", "Index of the group inside the deployment, from 0."
    STAGE = "bireme.dev/stage", "Pipeline stage of the pod, from 0; stage 0 is the leader."
    ROLE = "bireme.dev/role", "leader, stage or router."
    INCARNATION = "bireme.dev/incarnation", "Which making of this pod it is; the highest one is the current one."
    REVISION = "bireme.dev/revision", "Hash of the pod rendering that made the pod."
    MODEL_REVISION = "bireme.dev/model-revision", "The checkpoint that the pod was made with, `spec.model.revision`."
    SPARE = "bireme.dev/spare", "Number of a standby pod (its stage is `spare`); it keeps it when it becomes a stage."


class Annotation(Word):
    """Annotations on the InferenceDeployment: the verbs of the command line, acknowledged in status."""

    RESTART = "bireme.dev/restart", "A new value restarts the groups one by one and clears a spent restart budget."
    RESUME = (
        "bireme.dev/resume",
        "A new value gives every group that is Failed a fresh restart budget, and a rollout that failed another try.",
    )
    RELOAD_MODE = (
        "bireme.dev/reload-mode",
        "What becomes of running requests when only the checkpoint changes: finish (default) or restart.",
    )


class ConditionType(Word):
    """Condition types in `status.conditions`; all are set on the first visit."""

    READY = "Ready", "The summary: every wanted group serves the wanted revision."
    AVAILABLE = "Available", "At least one group serves requests."
    PROGRESSING = "Progressing", "Groups are on their way to the wanted state and the deadline has not passed."
    SCHEDULED = "Scheduled", "Every stage of every group has a place to run."
    RECONCILING = "Reconciling", "Work is under way (kstatus: abnormal when true)."
    STALLED = "Stalled", "Nothing more will happen until somebody changes something (kstatus: abnormal when true)."


class GroupState(Word):
    """`status.groups[].state`."""

    PENDING = "Pending", "Stages have no place to run yet."
    STARTING = "Starting", "Stages start, load the checkpoint and find one another."
    SERVING = "Serving", "All ranks progress and the leader takes requests."
    DRAINING = "Draining", "New work is refused, running requests finish or are handed over."
    RELOADING = "Reloading", "The group changes to another checkpoint in place."
    RECOVERING = "Recovering", "A part was lost; survivors keep their weights and wait for it."
    BACKING_OFF = "BackingOff", "The next start waits after repeated failures."
    FAILED = "Failed", "The restart budget is spent; `bireme resume`, `bireme restart` or a change of spec resumes it."


class Reason(Word):
    """Reasons in conditions, group states and the worker's `/state`."""

    NONE = "None", "Nothing to explain."
    PULLING = "Pulling", "The stage's process or container is being started."
    LOADING = "Loading", "Ranks read the checkpoint."
    RENDEZVOUS = "Rendezvous", "Stages wait for one another to form an epoch."
    WARMING = "Warming", "The formed group runs its first step before it takes requests."
    ALL_GROUPS_SERVING = "AllGroupsServing", "Every wanted group serves."
    SOME_GROUPS_SERVING = "SomeGroupsServing", "Fewer groups than wanted serve."
    NO_GROUP_SERVING = "NoGroupServing", "No group serves."
    PAUSED = "Paused", "`spec.paused` is true: nothing is changed."
    SCALED_TO_ZERO = "ScaledToZero", "No group is wanted."
    RANK_LOST = "RankLost", "A rank process ended."
    STAGE_LOST = "StageLost", "A stage's supervisor or its connection ended."
    LEADER_LOST = "LeaderLost", "The leader's supervisor or its connection ended."
    NODE_LOST = "NodeLost", "A stage's node is dead: its peers hear nothing of it and its Lease stands still."
    PREEMPTED = "Preempted", "The scheduler gave the place of a stage to a pod of higher priority."
    HUNG = "Hung", "Work was pending and no step finished within the limit."
    DEVICE_ERROR = "DeviceError", "A rank reported an error of its device or of a step."
    OUT_OF_MEMORY = "OutOfMemory", "A rank could not get memory; a smaller KV cache or more ranks would help."
    NON_FINITE = "NonFinite", "Most requests of the last minute had logits that are not finite; ranks load anew."
    SUPERSEDED = "Superseded", "A newer incarnation of this stage exists; this one closed its ports."
    DRAIN_REQUESTED = "DrainRequested", "`/drain` or SIGTERM asked for it."
    CRASH_LOOP = "CrashLoop", "The stage ended again and again; its next start is delayed."
    BAD_CONFIGURATION = "BadConfiguration", "The stage exited with 64: its configuration can't work."
    BAD_CHECKPOINT = "BadCheckpoint", "The stage exited with 65: the checkpoint can't be loaded."
    BUDGET_EXHAUSTED = "BudgetExhausted", "More restarts than `spec.recovery.restartBudget` allows."
    WORKER_UNREACHABLE = "WorkerUnreachable", "The leader's `/watch` is silent."
    WRONG_VERSION = "WrongVersion", "The group's workers are of a release too far off; the message has the versions."
    UNSCHEDULABLE = "Unschedulable", "The scheduler finds no node for a stage; the message is its own."
    QUOTA = "Quota", "A ResourceQuota of the namespace has no room for the whole group."
    NO_CAPACITY = "NoCapacity", "No place fits the whole group; it waits whole, and the message says for what."
    GATED = "Gated", "The group's stages wait at their scheduling gates until a place for all of them is found."
    NATIVE_GANG_IGNORED = (
        "NativeGangIgnored",
        "The cluster keeps no gangs for `placement.scheduler: Native`; the message says what to turn on.",
    )
    PROGRESS_DEADLINE_EXCEEDED = (
        "ProgressDeadlineExceeded",
        "A rollout made no progress for `spec.rollout.progressDeadlineSeconds`, or a new group has failed.",
    )
    CANARY_ANALYSIS = (
        "CanaryAnalysis",
        "A canary serves and is compared with the other groups; the rest follows when it has passed.",
    )
    CANARY_FAILED = "CanaryFailed", "The canary failed too often or was too slow; the message has the numbers."
    ROLLED_BACK = "RolledBack", "A rollout failed; the groups have gone back to the last revision that served."
    CONFLICTING_PDB = (
        "ConflictingPDB",
        "Another PodDisruptionBudget selects the group's pods too, so the Eviction API fails; the message names it.",
    )
    INVALID_TEMPLATE = "InvalidTemplate", "The API server refuses the rendered pods; the message has its words."
    OBJECT_IN_THE_WAY = (
        "ObjectInTheWay",
        "An object that is not this deployment's has a name that it needs; the message says which and what to do.",
    )
    TWO_AUTOSCALERS = (
        "TwoAutoscalers",
        "A HorizontalPodAutoscaler sets `spec.replicas` beside `spec.autoscaling`; its number is followed.",
    )
    STAGING = "Staging", "Ranks read and verify the new checkpoint beside the served one."
    PREPARED = "Prepared", "The new checkpoint is verified; running requests end first."
    COMMITTING = "Committing", "The new weights take the place of the old ones."
    RELOAD_FAILED = "ReloadFailed", "The new checkpoint could not be had; the old one goes on serving."
    NAME_TAKEN = "NameTaken", "`spec.model.revision` has served other weights; the message names them."
    SHUTTING_DOWN = "ShuttingDown", "The deployment is being stopped."


class Event(Word):
    """Events: on the object in a cluster, in the log of `bireme up` on a laptop."""

    GROUP_CREATED = "GroupCreated", "All stages of a group were created."
    GROUP_WAITS = "GroupWaits", "A group finds no place, or no quota, for all of it; names what is missing."
    GROUP_SERVING = "GroupServing", "A group began to serve; names the epoch."
    GROUP_LOST_PART = "GroupLostPart", "A group lost a rank or stage; names it and the reason."
    STAGE_REPLACED = "StageReplaced", "A stage was made anew under a higher incarnation."
    STAGE_RESTARTED = "StageRestarted", "A stage's process was started again in place."
    GROUP_FAILED = "GroupFailed", "A group's restart budget is spent."
    GROUP_RELOADED = "GroupReloaded", "A group serves another checkpoint; names its revision."
    GROUP_RELOAD_FAILED = "GroupReloadFailed", "A group can't have the wanted checkpoint and keeps its own; says why."
    CANARY_STARTED = "CanaryStarted", "The canary groups serve; from here on they are compared with the others."
    CANARY_PASSED = "CanaryPassed", "The canary was as good as the others: the rollout goes on. Has the numbers."
    CANARY_FAILED = "CanaryFailed", "The canary was worse: the rollout is given up. Has the numbers."
    GROUP_MOVES = "GroupMoves", "A group is to be had elsewhere; names the nodes that it is to leave, and why."
    GROUP_DRAINED = "GroupDrained", "A group has no running request left and was deleted."
    NATIVE_GANG_IGNORED = (
        "NativeGangIgnored",
        "The cluster keeps no native gangs; says what to turn on, and whether Gates places the groups meanwhile.",
    )


class Metric(Word):
    """Prometheus metrics. Worker names follow the meanings of vLLM's, so that dashboards carry over."""

    REQUESTS_RUNNING = "bireme_num_requests_running", "Gauge: requests with a slot in the engine."
    REQUESTS_WAITING = "bireme_num_requests_waiting", "Gauge: requests admitted and waiting for a slot or blocks."
    KV_USAGE = "bireme_kv_cache_usage_ratio", "Gauge: used share of the KV blocks, 0 to 1."
    PROMPT_TOKENS = "bireme_prompt_tokens_total", "Counter: prompt tokens computed."
    GENERATION_TOKENS = "bireme_generation_tokens_total", "Counter: tokens generated."
    CACHED_TOKENS = "bireme_prefix_cache_hit_tokens_total", "Counter: prompt tokens taken from the prefix cache."
    REQUESTS = "bireme_requests_total", "Counter by `finish_reason`: requests ended in the engine."
    NONFINITE = (
        "bireme_nonfinite_requests_total",
        "Counter: requests that failed because their logits were not finite.",
    )
    DRAFTED = "bireme_spec_decode_num_draft_tokens_total", "Counter: tokens that were drafted (speculative decoding)."
    ACCEPTED = "bireme_spec_decode_num_accepted_tokens_total", "Counter: drafted tokens that were what was drawn."
    STEPS = "bireme_steps_total", "Counter: plans whose result came back."
    EPOCH = "bireme_epoch", "Gauge: the epoch that serves, 0 while none does."
    READY = "bireme_ready", "Gauge: 1 while `/readyz` answers 200."
    LOADS = "bireme_checkpoint_loads_total", "Counter by `rank`: how often a rank of this stage read a checkpoint."
    RANK_RESTARTS = "bireme_rank_restarts_total", "Counter by `rank`: rank processes started after the first."
    EPOCHS_ENDED = "bireme_epochs_ended_total", "Counter by `reason`: epochs that ended."
    ROUTER_REQUESTS = "bireme_router_requests_total", "Counter by `code`: requests answered by the router."
    ROUTER_IN_FLIGHT = "bireme_router_in_flight", "Gauge by `group`: requests that the router has open on a group."
    ROUTER_OUTSTANDING = (
        "bireme_router_outstanding_tokens",
        "Gauge by `group`: tokens still expected of a group.",
    )
    ROUTER_WAITING = "bireme_router_waiting", "Gauge: requests that wait in the router for a group."
    ROUTER_WAITING_CLASS = (
        "bireme_router_waiting_by_priority",
        "Gauge by `priority`: requests that wait in the router, those aside of which a client holds a part.",
    )
    ROUTER_QUEUE_SECONDS = (
        "bireme_router_queue_seconds",
        "Histogram by `priority`: how long requests waited in the router for a group.",
    )
    ROUTER_ATTEMPTS = (
        "bireme_router_attempts_total",
        "Counter by `revision`, `model_revision` and `outcome` (ok, error, refused, moved): requests sent to a group.",
    )
    ROUTER_FIRST_TOKEN = (
        "bireme_router_time_to_first_token_seconds",
        "Histogram by `revision` and `model_revision`: from the send to a group to its first token.",
    )
    ROUTER_TOKEN_GAP = (
        "bireme_router_inter_token_latency_seconds",
        "Histogram by `revision` and `model_revision`: time per token after the first.",
    )
    ROUTER_PREDICTED_CACHED = (
        "bireme_router_predicted_cached_tokens_total",
        "Counter: prompt tokens that the router believed cached, of requests whose groups reported.",
    )
    ROUTER_REPORTED_CACHED = (
        "bireme_router_reported_cached_tokens_total",
        "Counter: prompt tokens that the groups reported as cached, for the same requests.",
    )
    ROUTER_RESENDS = "bireme_router_resends_total", "Counter: requests sent again because provably unprocessed."
    ROUTER_RESUMES = "bireme_router_resumes_total", "Counter: broken streams continued on a group."
    ROUTER_HEDGES = (
        "bireme_router_hedges_total",
        "Counter by `winner` (first, second): requests sent to a second group because the first was slow to answer.",
    )
    ROUTER_DISCONNECTS = (
        "bireme_router_client_disconnects_total",
        "Counter: clients that left early.",
    )
    ROUTER_GROUP_READY = "bireme_router_group_ready", "Gauge by `group`: 1 while the router sends work to the group."
    OPERATOR_LEADING = "bireme_operator_leading", "Gauge: 1 while this operator holds the Lease, so acts."
    OPERATOR_RECONCILES = (
        "bireme_operator_reconciles_total",
        "Counter by `result` (done, retried, failed): visits to a deployment; failed is a fault in the operator.",
    )
    OPERATOR_RECONCILE_SECONDS = "bireme_operator_reconcile_seconds", "Histogram: how long a visit took."
    OPERATOR_QUEUED = "bireme_operator_queue_depth", "Gauge: deployments that are due and wait for a worker."
    OPERATOR_WORKING = "bireme_operator_work_in_progress", "Gauge: deployments that are being visited now."
    OPERATOR_WRITES = (
        "bireme_operator_api_writes_total",
        "Counter by `verb` and `resource`, as RBAC names them: writes sent to the API server.",
    )
    OPERATOR_ERRORS = (
        "bireme_operator_api_errors_total",
        "Counter by `error` (NotFound, Conflict, Refused, Unavailable, …): requests that the API server did not grant.",
    )
    OPERATOR_GROUPS = "bireme_operator_groups", "Gauge by `state`: groups of all deployments."
    OPERATOR_RECOVERIES = (
        "bireme_operator_recoveries_total",
        "Counter by `reason`, the first that was seen: groups that had lost a part and serve again.",
    )
    OPERATOR_RECOVERY_SECONDS = (
        "bireme_operator_recovery_seconds",
        "Histogram by `reason`: from the loss of a part until its group served again.",
    )
    OPERATOR_DETECTION_SECONDS = (
        "bireme_operator_detection_seconds",
        "Histogram by `reason`: from the last sign of life of a lost part until somebody knew of the loss.",
    )


class Env(Word):
    """Environment of a stage pod (the starting identity) and of the tools."""

    GROUP_UID = "BIREME_GROUP_UID", "Identity of the group; every handshake proves it."
    GROUP_INDEX = "BIREME_GROUP_INDEX", "Index of the group inside the deployment."
    STAGE = "BIREME_STAGE", "Pipeline stage of this pod, from 0."
    STAGES = "BIREME_STAGES", "Number of pipeline stages."
    TENSOR = "BIREME_TENSOR", "Tensor-parallel ranks in this pod."
    STAGE_LAYERS = "BIREME_STAGE_LAYERS", "Comma-separated layers per stage; empty means the weighted split."
    STANDBY = "BIREME_STANDBY", "1: the pod waits until `/adopt` tells it which stage it is; default 0."
    INCARNATION = "BIREME_INCARNATION", "Which making of this stage's pod it is."
    LEADER_ADDRESS = "BIREME_LEADER_ADDRESS", "Host of the leader pod (stage 0)."
    POD_IP = "BIREME_POD_IP", "This pod's own address, by the downward API; never the host name's first address."
    TOKEN_FILE = "BIREME_TOKEN_FILE", "File with the group token, hex; it signs handshakes and admin calls."
    STATE_DIR = "BIREME_STATE_DIR", "Directory that survives container restarts (an emptyDir)."
    REVISION = "BIREME_REVISION", "Hash of the pod rendering."
    MODEL_NAME = "BIREME_MODEL_NAME", "OpenAI model name."
    MODEL_ALIASES = "BIREME_MODEL_ALIASES", "Comma-separated further names that clients may use."
    MODEL_PATH = "BIREME_MODEL_PATH", "Directory or file of the checkpoint."
    MODEL_REVISION = "BIREME_MODEL_REVISION", "Name of the checkpoint, `spec.model.revision`."
    MODEL_DTYPE = "BIREME_MODEL_DTYPE", "auto, float32, bfloat16 or float16."
    DEVICE = (
        "BIREME_DEVICE",
        "auto (a GPU where there is one), cpu, or cuda; with auto:N or cuda:N rank 0 takes GPU N, the next one N + 1.",
    )
    MAX_MODEL_LENGTH = "BIREME_MAX_MODEL_LENGTH", "Longest prompt plus output, tokens; 0 takes the model's own."
    MAX_RUNNING_REQUESTS = "BIREME_MAX_RUNNING_REQUESTS", "Requests with a slot at the same time."
    MAX_BATCHED_TOKENS = "BIREME_MAX_BATCHED_TOKENS", "Token budget of one step."
    MAX_QUEUED_REQUESTS = "BIREME_MAX_QUEUED_REQUESTS", "Requests that may wait for a slot before 429."
    KV_BYTES = "BIREME_KV_BYTES", "Bytes of KV cache per rank; 0 takes the device's default."
    PREFIX_CACHING = "BIREME_PREFIX_CACHING", "1 or 0."
    DRAIN_TIMEOUT = "BIREME_DRAIN_TIMEOUT_SECONDS", "How long SIGTERM lets running requests finish."
    HTTP_PROCESSES = "BIREME_HTTP_PROCESSES", "HTTP processes on the leader."
    SPARE_RANK = (
        "BIREME_SPARE_RANK",
        "1 (default) keeps one warm process per stage for a rank that dies; 0 saves its memory.",
    )
    SPREAD_EXPERTS = (
        "BIREME_SPREAD_EXPERTS",
        "1 gives each rank of a stage some experts whole; 0 (default) gives it a part of every expert.",
    )
    THREADS = "BIREME_THREADS", "Compute threads of a rank on a CPU; default 1, because ranks share the pod's cores."
    SPECULATION = (
        "BIREME_SPECULATION",
        "Most tokens that are drafted per request and step by looking back in its own text; 0 (default) is off.",
    )
    QUANTIZATION = "BIREME_QUANTIZATION", "What plain weights become at load: none (default), int8, int4 or fp8."
    KV_DTYPE = "BIREME_KV_DTYPE", "Number format of the KV cache: auto (default, the model's dtype), fp8 or int8."
    KV_FRACTION = (
        "BIREME_KV_FRACTION",
        "Percentage of the memory that is free beside the weights that the KV cache takes; 0 (default) is off.",
    )
    SHARD_CACHE = (
        "BIREME_SHARD_CACHE",
        "Directory on the node's own disk in which ranks keep their slices for the next start; default none.",
    )
    SHARD_CACHE_BYTES = (
        "BIREME_SHARD_CACHE_BYTES",
        "Most bytes of the shard cache; the entries used longest ago go first. 0 (default) is no bound.",
    )
    ADAPTERS = "BIREME_ADAPTERS", "LoRA adapters: comma-separated name=directory; the name is used like a model's."
    MAX_ADAPTER_RANK = "BIREME_MAX_ADAPTER_RANK", "Highest rank of an adapter that is loaded; default 64."
    NVTX = "BIREME_NVTX", "1 marks the parts of each step as NVTX ranges, for Nsight Systems; default 0."
    PARENT_PID = "BIREME_PARENT_PID", "Set by a parent for its child: the child ends when that parent is gone."
    CACHE_DIR = "BIREME_CACHE_DIR", "Where converted models are kept; default ~/.cache/bireme."
    RUN_DIR = (
        "BIREME_RUN_DIR",
        "Where `bireme up` keeps its state; default ~/.local/state/bireme.",
    )


class Port(Number):
    """Ports of a stage pod and of the router."""

    HTTP = 8000, "OpenAI routes, on the leader."
    ADMIN = 8001, "Probes, metrics, state and admin verbs, on every stage."
    CONTROL = 8002, "Control channel between supervisors, on the leader."
    PLAN = 8003, "Plan and result frames between coordinator and ranks, on the leader."
    DATA = 8010, "First data port of a stage: rank r listens on 8010 + r for hidden states and sampled tokens."
    ROUTER = 8080, "The router's default port."


class Exit(Number):
    """Exit codes of a stage pod."""

    DRAINED = 0, "Drained and stopped as asked."
    BAD_CONFIGURATION = 64, "Bad configuration: starting again can't help."
    BAD_CHECKPOINT = 65, "Bad checkpoint: starting again with this model revision can't help."
    INTERNAL = 70, "Internal error."
    PEER_LOST = 75, "A peer stayed away beyond the wait limit, or the device could not be freed: start again."


class Admission(Number):
    """HTTP codes by which worker and router refuse a request; 429 and 503 carry Retry-After."""

    NEVER_FITS = 400, "Malformed, or can never fit the context or the KV cache; the message has the numbers."
    UNAUTHORIZED = 401, "The admin token is missing or wrong."
    UNKNOWN_MODEL = 404, "No such model or route."
    CONFLICT = 409, "The group can't do this now, for example resume on another model revision."
    BODY_TOO_LARGE = 413, "The body is over the limit."
    QUEUE_FULL = 429, "The queue is full."
    GROUP_LOST = 502, "The request was sent and its group lost, as often as `router.retry.attempts` allows."
    NOT_SERVING = 503, "Draining, re-forming, loading, or no group at hand."
    DEADLINE = 504, "No group could be had before the request's deadline."


class Header(Word):
    """HTTP headers of ours."""

    TOKEN = "authorization", "`Bearer <group token>` on admin routes, and on OpenAI routes by the router."
    REQUEST_ID = "x-request-id", "Request id, given by the client or made by the router; part of the response id."
    UNPROCESSED = "x-bireme-unprocessed", "`1` on every refusal after which the request is provably unprocessed."
    JOURNAL = "x-bireme-journal", "`1` asks for journal lines in the stream; needs the token."
    ATTEMPT = "x-bireme-attempt", "How many times the router has sent this request, from 1."
    MODEL_REVISION = "x-bireme-model-revision", "Checkpoint that made the answer."
    PRIORITY = "x-bireme-priority", "Class of the request in the router's queue: interactive, standard or batch."
    SESSION = "x-bireme-session", "Any name of a conversation; its requests go to the same group while that is cheap."
    ZONE = "x-bireme-zone", "Where the caller is; a group there is preferred when costs tie."
    TIMEOUT = "x-request-timeout", "Client's deadline in seconds; the router gives up then."
