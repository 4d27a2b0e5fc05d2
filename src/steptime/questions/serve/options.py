"""The options of `serve`, and the service, the demand and the sites that they describe."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import Annotated, Any, TypedDict

from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.kinds import File, Kind, Settings, setting_texts, text_of
from steptime.core.signatures.signature import OptionGroup, option_name
from steptime.core.values import (
    Count,
    Seconds,
    Share,
    parse_bytes,
    parse_count,
    parse_devices,
    parse_latency_s,
    parse_number,
    parse_share,
)
from steptime.planning.ranks.site import Site, make_sites
from steptime.prediction import DEFAULT
from steptime.questions import kinds, options
from steptime.questions.node_options import link_names
from steptime.questions.pictures import check_picture
from steptime.questions.serve.stack_calibration import find_calibration
from steptime.questions.step_options import Method
from steptime.serving.demand import LOAD_FIELDS, Demand, check_demand
from steptime.serving.engine import Engine
from steptime.serving.search import DEFAULT_MAX_DEVICES, MAX_SEARCHED_DEVICES
from steptime.serving.service import Service
from steptime.serving.speculation import Speculation, speculation_of

DEFAULT_INPUT_TOKENS, DEFAULT_OUTPUT_TOKENS = 1024, 128
MAX_BARE_TTFT_S = 60.0  # a bare number above is meant in milliseconds: nobody waits so long
MAX_BARE_TPOT_S = 2.0
LanguageModel = Annotated[
    str | PathLike[str],
    Kind("MODEL", is_argument=True, completes="steptime.network.families:list_names"),
]
ShareValue = Annotated[Share, Kind("W")]
YES_NO = ("yes", "no")
MaxSequences = Annotated[
    Count, Kind("N", names=("--max-running-sequences", "--max-num-seqs"), panel="Engine")
]
Latency = Annotated[Seconds, Kind("S")]


class ServeKeywords(TypedDict, total=False):
    """Keywords of `ServeOptions`."""

    tensor: Annotated[Count, Kind("T")]
    pipeline: Annotated[Count, Kind("P")]
    data: kinds.Count
    expert: Annotated[Count, Kind("E")]
    replicas: kinds.Count
    dtype: Annotated[str, Kind("NAME")] | None
    weights: Annotated[str, Kind("NAME", panel="Memory")] | None
    kv: Annotated[str, Kind("NAME")] | None
    prices: kinds.PriceFile | None
    prefix: ShareValue | None
    stack: kinds.StackName | None
    calibration: Annotated[File, Kind("FILE", panel="Software")] | None
    method: Method
    options: kinds.MethodSettings | None
    per_node: kinds.Count | None
    inside: kinds.Links | None
    link: kinds.Links | None
    links_per_node: kinds.Count | None
    concurrency: kinds.Count | None
    rate: Annotated[float | str, Kind("R")] | None
    requests: kinds.Trace | None
    count: kinds.Count | None
    seed: kinds.Count | None
    lengths: Annotated[str, Kind("NAME")] | None
    ttft: Latency | None
    tpot: Latency | None
    max_running_sequences: MaxSequences | None
    gpu_memory_utilization: Annotated[Share, Kind("W", panel="Engine")] | None
    max_model_len: Annotated[Count, Kind("N", panel="Engine")] | None
    max_num_batched_tokens: Annotated[Count, Kind("N", panel="Engine")] | None
    chunked_prefill: Annotated[str | bool, Kind("yes|no", choices=YES_NO, panel="Engine")] | None
    max_context: Annotated[bool, Kind(panel="Engine")]
    max_users: Annotated[bool, Kind(panel="Engine")]
    prefill_replicas: kinds.Count | None
    prefill_tensor: Annotated[Count, Kind("T")] | None
    prefill_data: kinds.Count | None
    prefill_expert: Annotated[Count, Kind("E")] | None
    draft: Annotated[str, Kind("MODEL")] | None
    speculate: Annotated[Count, Kind("Q")] | None
    accept: ShareValue | None
    search: bool
    max_device_count: kinds.Count | None
    out: kinds.OutFile | None
    context: Annotated[Count, Kind("N", names=("--context", "--ctx-size"), panel="Memory")] | None
    gpu_layers: Annotated[Count, Kind("N", names=("--gpu-layers", "-ngl"), panel="Memory")] | None
    cpu_moe: Annotated[Count, Kind("N", names=("--cpu-moe", "--n-cpu-moe"), panel="Memory")] | None
    memory: Annotated[kinds.Bytes, Kind("SIZE", panel="Memory")] | None
    ubatch: Annotated[Count, Kind("N", panel="Software")] | None
    no_flash_attention: Annotated[bool, Kind(panel="Software")]
    host: Annotated[str, Kind("NAME", completes="steptime.cli.complete:device_names")] | None


@dataclass(frozen=True)
class ServeOptions(OptionGroup, keywords=ServeKeywords):
    """How a language model is split and run, its requests and their targets.

    Args:
        tensor: Tensor parallelism: devices that split each matrix product.
        pipeline: Pipeline parallelism: number of stages.
        data: Data parallelism: ranks that divide the sequences (and experts).
        expert: Expert parallelism: data ranks that divide the experts.
        replicas: Independent copies of the server, each with its running sequences.
        dtype: `bfloat16` (default) or `float16`; `float8` or `float4` for the layers' matrix
            products.
        weights: Format of the layers' weights: `float8`, `int8`, `int4`, `float4`, `mxfp4`; or of
            GGUF (`q4_k_m`, `iq3_xxs`, `q8_0`, `f16`), MLX (`mlx_4bit`), exllama (`exl_4bpw`).
        kv: Format of cached keys and values: `float8`, `int8`, `int4`, `float4`, `mxfp4`; in
            llama.cpp `f16`, `q8_0`, `q4_0`.
        prices: A file of prices. Default: the shipped prices, each with its date.
        prefix: Share of each prompt that is in the cache already, such as 0.3.
        stack: The software: a name, a family (`vllm`, `sglang`, `trt-llm`) for its newest release,
            or `llama.cpp`, `ollama`, `mlx`, `exllama`. Default: vllm, with intervals that cover all
            three families; llama.cpp for GGUF weights and Apple's chips.
        calibration: A file fitted to your servers (by steptime calibrate --serving).
        method: The cost model: how kernels are priced (steptime list methods).
        options: A setting of the cost model; may be repeated.
        per_node: Devices of a node. Default: as in the maker's node, else 8.
        inside: The link between the devices of a node.
        link: The link of a device to other nodes.
        links_per_node: Links from a node to other nodes. Default: one per device.
        concurrency: Under load: N users, who each ask again when the answer is complete.
        rate: Under load: mean requests a second, at random times (Poisson).
        requests: Under load: a trace, .csv or .jsonl: arrival_s, input_tokens, output_tokens.
        count: Requests to simulate. Default: 10 for each user, 1000 with --rate, all of --requests.
        seed: Seed of the random times of requests. Default: 0.
        lengths: Under load: lengths of prompts and answers: `constant` (default), `sharegpt` (as in
            chats), or a table with `input_tokens` and `output_tokens`.
        ttft: TTFT target: 0.5 (seconds) or 500ms.
        tpot: TPOT target: 0.02 (seconds) or 20ms.
        max_running_sequences: Most sequences that a replica runs at once. Default: the software's;
            with `--concurrency`, at most its number of users.
        gpu_memory_utilization: Share of the memory that the server may use. Default: the
            software's.
        max_model_len: Tokens of the longest sequence that the server accepts.
        max_num_batched_tokens: Most tokens of a step. Default: the software's.
        chunked_prefill: Whether steps read parts of prompts while they write answers of others.
        max_context: Print first the longest context that fits, at `--running-sequences`.
        max_users: Print first how many users fit, each with `--input` and `--output` tokens.
        prefill_replicas: Further replicas that only read prompts; --replicas then only decode.
        prefill_tensor: Tensor parallelism of the replicas that read prompts. Default: --tensor.
        prefill_data: Data ranks of the replicas that read prompts. Default: --data.
        prefill_expert: Expert ranks of the replicas that read prompts. Default: --expert.
        draft: What drafts tokens (speculative decoding): a network, mtp, eagle, eagle3, ngram.
        speculate: Tokens that are drafted for each step. Default: 3; 1 with `--draft mtp`.
        accept: Chance that a drafted token is right (`0.7`). Default: as published for --draft.
        search: Find the servers with which 90 % of requests meet --ttft and --tpot.
        max_device_count: With `--search`: most devices of all replicas. Default: 64.
        out: With --search: draw tokens/s per device against tokens/s per user: .png, .svg, .pdf or
            .html.
        context: Tokens that the cache has room for. Default: --input plus --output.
        gpu_layers: Layers on devices, the output layer counted as one; the others stay on the host.
            Default: all.
        cpu_moe: Layers whose experts stay on the host. Default: 0.
        memory: Memory of the device (`48GB`). Default: as in its file; of a Mac the largest sold.
        ubatch: Tokens of a prompt that pass at once. Default: the stack's (llama.cpp: 512).
        no_flash_attention: Compute attention in several kernels, with its scores in memory.
        host: The CPU that runs the layers on the host. Default: ryzen-9-7950x.
    """

    tensor: Count = 1
    pipeline: Count = 1
    data: Count = 1
    expert: Count = 1
    replicas: Count = 1
    dtype: str | None = None
    weights: str | None = None
    kv: str | None = None
    prices: File | None = None
    prefix: Share | None = None
    stack: str | None = None
    calibration: File | None = None
    method: Any = DEFAULT
    options: Settings | None = None
    per_node: Count | None = None
    inside: Any = None
    link: Any = None
    links_per_node: Count | None = None
    concurrency: Count | None = None
    rate: float | str | None = None
    requests: File | None = None
    count: Count | None = None
    seed: Count | None = None
    lengths: str | None = None
    ttft: Seconds | None = None
    tpot: Seconds | None = None
    max_running_sequences: Count | None = None
    gpu_memory_utilization: Share | None = None
    max_model_len: Count | None = None
    max_num_batched_tokens: Count | None = None
    chunked_prefill: str | bool | None = None
    max_context: bool = False
    max_users: bool = False
    prefill_replicas: Count | None = None
    prefill_tensor: Count | None = None
    prefill_data: Count | None = None
    prefill_expert: Count | None = None
    draft: str | None = None
    speculate: Count | None = None
    accept: Share | None = None
    search: bool = False
    max_device_count: Count | None = None
    out: File | None = None
    context: Count | None = None
    gpu_layers: Count | None = None
    cpu_moe: Count | None = None
    memory: Any = None
    ubatch: Count | None = None
    no_flash_attention: bool = False
    host: str | None = None

    def sites(self, devices: Any) -> list[Site]:
        """Return the devices and their links; raises `InputError`, for several without a search."""
        names = parse_devices(text_of(devices))
        if len(names) > 1 and not self.search:
            raise InputError("several devices (--device) go with --search")
        per_node = self.count_of("per_node")
        links_per_node = self.count_of("links_per_node")
        inside_links = link_names(self.inside)
        links = link_names(self.link)
        return make_sites(names, per_node, inside_links, links, links_per_node)

    def service(
        self,
        model: str | PathLike[str],
        site: Site,
        running_sequences: Count,
        input_tokens: Count | None,
        output_tokens: Count | None,
    ) -> Service:
        """Return the service that the options describe; raises `InputError`."""
        if self.requests is not None:
            lengths = {"--input": input_tokens, "--output": output_tokens}
            options.refuse(lengths, "--requests FILE has the tokens of each request: leave out {}")
        calibration = find_calibration(self.calibration, self.stack)
        return Service(
            model=fspath(model),
            site=site,
            running_sequences=parse_count(text_of(running_sequences), "--running-sequences"),
            input=_count_or(input_tokens, "--input", DEFAULT_INPUT_TOKENS),
            output=_count_or(output_tokens, "--output", DEFAULT_OUTPUT_TOKENS),
            tensor=self.count_of("tensor") or 1,
            pipeline=self.count_of("pipeline") or 1,
            data=self.count_of("data") or 1,
            expert=self.count_of("expert") or 1,
            replicas=self.count_of("replicas") or 1,
            dtype=self.dtype,
            weights=self.weights,
            kv=self.kv,
            stack=self.stack if calibration is None else calibration.stack,
            method=self.method,
            options=options.pairs(setting_texts(self.options), "--option"),
            prices=None if self.prices is None else Path(self.prices),
            demand=self.demand(),
            prefix=self._share("prefix"),
            trusted=True,  # the user typed the model, so it may be the user's own code
            engine=self.engine(),
            speculation=self.speculation(),
            calibration=calibration,
        )

    def speculation(self) -> Speculation | None:
        """Return who guesses tokens for a step, None without; raises `InputError`."""
        if self.draft is None:
            guessed = {"--speculate": self.speculate, "--accept": self.accept}
            options.refuse(guessed, "{} goes with --draft MODEL, or mtp, eagle, eagle3, ngram")
            return None
        accept = None if self.accept is None else self._share("accept")
        return speculation_of(self.draft, self.count_of("speculate"), accept)

    def engine(self) -> Engine:
        """Return the settings of the engine; raises `InputError`."""
        chunked_prefill = self.chunked_prefill
        if isinstance(chunked_prefill, str):  # Python callers may give True or False
            check_choice("--chunked-prefill", chunked_prefill, YES_NO)
            chunked_prefill = chunked_prefill == "yes"
        memory_share = None
        if self.gpu_memory_utilization is not None:
            memory_share = self._share("gpu_memory_utilization")
            if memory_share <= 0:
                raise InputError("--gpu-memory-utilization: is a share above 0, such as 0.9")
        return Engine(
            memory_share=memory_share,
            max_model_len=self.count_of("max_model_len"),
            step_tokens=self.count_of("max_num_batched_tokens"),
            max_sequences=self.count_of("max_running_sequences"),
            chunked_prefill=chunked_prefill,
        )

    def demand(self) -> Demand | None:
        """Return the demand, None where no option of a load is given; raises `InputError`."""
        # 0 stands for an option that is not given.
        demand = Demand(
            concurrency=self.count_of("concurrency") or 0,
            rate=0.0 if self.rate is None else parse_number(self.rate, "--rate"),
            requests=None if self.requests is None else Path(self.requests),
            count=self.count_of("count") or 0,
            seed=self.count_of("seed", at_least=0) or 0,
            ttft=self.target_s("ttft", MAX_BARE_TTFT_S),
            tpot=self.target_s("tpot", MAX_BARE_TPOT_S),
            max_running_sequences=self.count_of("max_running_sequences") or 0,
            prefill_replicas=self.count_of("prefill_replicas") or 0,
            prefill_tensor=self.count_of("prefill_tensor") or 0,
            prefill_data=self.count_of("prefill_data") or 0,
            prefill_expert=self.count_of("prefill_expert") or 0,
            lengths=self.lengths,
        )
        has_load = any(getattr(self, name) is not None for name in LOAD_FIELDS)
        if not has_load:
            return None
        check_demand(demand)
        return demand

    def target_s(self, name: str, bare_max_s: float) -> float:
        """Return the target of an option in seconds, infinity without one; raises `InputError`."""
        target = getattr(self, name)
        if target is None:
            return inf
        return parse_latency_s(target, option_name(name), bare_max_s=bare_max_s)

    @property
    def ttft_s(self) -> float | None:
        """The target of the time to the first token, None without one."""
        target_s = self.target_s("ttft", MAX_BARE_TTFT_S)
        return None if target_s == inf else target_s

    @property
    def tpot_s(self) -> float | None:
        """The target of the time per output token, None without one."""
        target_s = self.target_s("tpot", MAX_BARE_TPOT_S)
        return None if target_s == inf else target_s

    @property
    def searched_device_count(self) -> int:
        """The devices of a server of a search at most; raises `InputError`."""
        if self.max_device_count is None:
            return DEFAULT_MAX_DEVICES
        text = text_of(self.max_device_count)
        return parse_count(text, "--max-device-count", 1, MAX_SEARCHED_DEVICES)

    def check_search(self) -> Path | None:
        """Check the options of a search before anything is computed, and return its picture.

        Raises:
            InputError: for options of a search without one, and a picture that cannot be written.
        """
        picture = check_picture(self.out)
        _ = self.searched_device_count  # raises for text that is no number
        if not self.search:
            search_options = {"--max-device-count": self.max_device_count, "--out": self.out}
            options.refuse(search_options, "{} goes with --search")
        return picture

    def keep_unstated(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values of those options that the user left out."""
        return {name: text for name, text in values.items() if getattr(self, name) is None}

    def _share(self, name: str) -> float:
        """Return the share of an option, 0 without one; raises `InputError`."""
        value = getattr(self, name)
        return 0.0 if value is None else parse_share(value, option_name(name))

    @property
    def tensor_count(self) -> int:
        """The devices that share each product; raises `InputError`."""
        return self.count_of("tensor") or 1

    @property
    def pipeline_count(self) -> int:
        """The stages of the pipeline; raises `InputError`."""
        return self.count_of("pipeline") or 1

    @property
    def memory_bytes(self) -> float | None:
        """The memory of the device, None for that of its file; raises `InputError`."""
        return None if self.memory is None else parse_bytes(self.memory, "--memory")

    def count_of(self, name: str, at_least: int = 1) -> int | None:
        """Return the whole number of an option, None without one; raises `InputError`."""
        value = getattr(self, name)
        if value is None:
            return None
        return parse_count(text_of(value), option_name(name), at_least)


def _count_or(value: Count | None, option: str, default: int) -> int:
    return default if value is None else parse_count(text_of(value), option)
