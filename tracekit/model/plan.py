"""What a step decides and what its output changes: the scheduler's answers to its caller."""

from dataclasses import dataclass, field

from tracekit.model.request import Request


@dataclass(frozen=True, slots=True)
class Preemption:
    """One running request thrown back to waiting."""

    victim: Request
    needed_by: Request
    num_computed_tokens: int
    """Tokens whose KV is lost."""
    num_blocks: int
    """Blocks that became free (a block shared with another request does not)."""
    swapped: bool = False
    """V0 only: the KV went to the CPU, nothing is lost."""


@dataclass(slots=True)
class StepPlan:
    """One step's decision (vLLM's ``SchedulerOutput``) and the state right after it.

    The four region counts are those of ``reorder_batch_to_split_decodes_and_prefills``
    (``vllm/v1/attention/backends/utils.py``, 0.33.0, decode threshold 1): a request without computed tokens is a
    prefill, one with more than one token a long extend, one still inside its prompt a short extend, else a decode.
    """

    scheduled: dict[str, int] = field(default_factory=dict)
    """Tokens of each scheduled request, in the scheduler's order."""
    requests: list[Request] = field(default_factory=list)
    """The scheduled requests in the same order."""
    sampling: list[Request] = field(default_factory=list)
    """Those of them that will get a token from this step."""
    admitted: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    """Admitted again after a preemption (V0: swapped-in ones included)."""
    cached: dict[str, int] = field(default_factory=dict)
    """Prefix-cache hits of each admitted or resumed request, tokens."""
    preemptions: list[Preemption] = field(default_factory=list)
    kept_victims: list[Request] = field(default_factory=list)
    """V1 0.10.2 and 0.11.0 only: victims that keep this step's tokens and still sample (``scheduled_victim``)."""
    swapped_in: list[Request] = field(default_factory=list)
    """V0 only."""
    ignored: list[Request] = field(default_factory=list)
    """V0 only: prompts that can never run; they finish with this step."""
    num_prefill_groups: int = 0
    """V0 only: scheduled requests that are in prefill; they stand first."""
    bound_by: str = "none"
    """Why the head of the waiting queue was not admitted; ``none`` when nobody waited."""
    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_free_blocks: int = 0
    kv_cache_usage: float = 0.0
    num_scheduled_tokens: int = 0
    num_context_tokens: int = 0
    """Tokens that the scheduled requests had computed before this step."""
    num_attention_pairs: int = 0
    """Query and key pairs of the requests with more than one new token: what their attention computes."""
    num_decode: int = 0
    num_short_extend: int = 0
    num_long_extend: int = 0
    num_prefill: int = 0

    @property
    def is_stalled(self) -> bool:
        """Nothing runs, nothing was scheduled or preempted, and somebody waits: the head can never be admitted.

        A step that schedules nothing but preempted somebody (or V0 ignored somebody) is not the end: go on.
        """
        idle = not (self.scheduled or self.preemptions or self.ignored or self.num_running or self.num_swapped)
        return idle and self.num_waiting > 0

    def advance(self, *, is_async: bool) -> None:
        """Count the planned tokens as computed, see who will sample, and describe the batch.

        V1 only: ``_update_after_schedule`` of ``Scheduler`` and ``AsyncScheduler`` (0.33.0).
        """
        num_context = num_prefill = num_long = num_short = num_more_tokens = num_pairs = 0
        sampling = self.sampling
        for request, num_new in zip(self.requests, self.scheduled.values(), strict=True):
            num_computed = request.num_computed_tokens
            num_context += num_computed
            if num_new > 1 or num_computed < request.num_prompt_tokens:
                num_prefill += num_computed == 0
                num_long += num_computed > 0 and num_new > 1
                num_short += num_computed > 0 and num_new == 1
                num_more_tokens += num_new - 1
                if num_new > 1:
                    num_pairs += num_new * num_computed + num_new * (num_new + 1) // 2
            num_computed += num_new
            request.num_computed_tokens = num_computed
            if num_computed < request.num_tokens + request.num_output_placeholders:
                request.is_prefill_chunk = True
            else:
                request.is_prefill_chunk = False
                sampling.append(request)
                request.num_output_placeholders += is_async
        if self.kept_victims:
            self.sampling = [r for r in self.requests if not r.is_prefill_chunk or r in self.kept_victims]
        self.num_scheduled_tokens = len(self.requests) + num_more_tokens
        self.num_context_tokens = num_context
        self.num_attention_pairs = num_pairs
        self.num_prefill = num_prefill
        self.num_long_extend = num_long
        self.num_short_extend = num_short
        self.num_decode = len(self.requests) - num_prefill - num_long - num_short

    def describe_v0(self) -> None:
        """See who will sample and describe the batch; V0 counts the tokens later (``do_sample`` in ``schedule``)."""
        for request, num_new in zip(self.requests, self.scheduled.values(), strict=True):
            num_computed = request.num_computed_tokens
            self.num_scheduled_tokens += num_new
            self.num_context_tokens += num_computed
            if num_new > 1:
                self.num_attention_pairs += num_new * num_computed + num_new * (num_new + 1) // 2
            if not request.is_prefill_chunk:
                self.num_decode += 1
            elif num_computed == 0:
                self.num_prefill += 1
            elif num_new == 1:
                self.num_short_extend += 1
            else:
                self.num_long_extend += 1
            if num_computed + num_new >= request.num_tokens:
                self.sampling.append(request)


@dataclass(slots=True)
class StepOutput:
    """What processing the output of a step changed (vLLM's ``EngineCoreOutputs``)."""

    sampled: list[Request] = field(default_factory=list)
    """Requests that got a token, in the scheduler's order."""
    finished: list[Request] = field(default_factory=list)
