"""What a rule looks at: the document, what was found out about it, and what follows from both.

Values that the document leaves open are filled in as the engine would fill them in; what can't be known is None,
and rules stay silent about it (M302 and M303 say so once).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from diptych.catalog.engines import LOCAL, RAY_VLLM, TESTED_IMAGE, minor, versions_of_image
from diptych.check.facts import Facts, Machine
from diptych.errors import ModelError
from diptych.models import ModelShape
from diptych.render.engine import MOST_TOKENS, SCHEDULING_POLICY, engine_settings
from diptych.render.inputs import Facts as RenderFacts
from diptych.render.layout import WorkerGroup, parallel_size, worker_groups
from diptych.spec import EMBEDDED, Document, LoadedDocument, NodesSection, Phase, PhaseSection

_INNER_CONFIGS = ("text_config", "language_config", "llm_config")
WITHOUT_BFLOAT16 = ("t4", "v100")
"""GPUs that can't compute in bfloat16: vLLM then takes float16, unless the document asks for bfloat16."""

_DTYPE_NAMES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Engine:
    """The engine's versions; None where they are not known.

    Args:
        source: where they come from, in words.
        vllm_by_ray: nobody says which vLLM it is; it is the one that this Ray was made for.
    """

    ray: str | None
    vllm: str | None
    source: str
    vllm_by_ray: bool = False


@dataclass(frozen=True, eq=False)
class PhaseView:
    """One phase of a subject: its settings with the shared ones, and the model on its nodes."""

    subject: "Subject"
    name: Phase
    section: PhaseSection

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of vLLM: the shared ones, and over them the phase's own."""
        return self.subject.document.engine_kwargs_for(self.name)

    @cached_property
    def resolved(self) -> Mapping[str, Any]:
        """Arguments of vLLM as the engine gets them: with those that Diptych sets where the document doesn't."""
        subject = self.subject
        if not subject.is_local:
            return engine_settings(subject.document, self.name, RenderFacts(shape=subject.shape)).kwargs
        defaults: dict[str, Any] = {
            "scheduling_policy": SCHEDULING_POLICY,
            "enforce_eager": not subject.on_gpu,
        }
        if subject.shape is not None:
            defaults["max_model_len"] = min(subject.shape.context_length, MOST_TOKENS)
        if subject.document.model.source == EMBEDDED and not subject.on_gpu:
            defaults["dtype"] = "float32"
        return defaults | self.kwargs

    def path(self, argument: str) -> str:
        """The field of the document that gives this argument of vLLM, or where it would."""
        own = argument in self.section.engine_kwargs or argument not in self.subject.document.engine_kwargs
        return f"{self.name}.engine_kwargs.{argument}" if own else f"engine_kwargs.{argument}"

    def nodes_path(self, field: str) -> str:
        """The phase's own field of its nodes where the document gives one, else the shared one."""
        own = f"{self.name}.nodes.{field}"
        return own if self.subject.is_written(own) else f"nodes.{field}"

    @cached_property
    def group(self) -> WorkerGroup | None:
        """Its worker pods; None on this machine."""
        return next((each for each in self.subject.groups if each.phase == self.name), None)

    @property
    def nodes(self) -> NodesSection:
        return self.subject.document.nodes_for(self.name)

    @property
    def tensor_parallel(self) -> int:
        return parallel_size(self.kwargs.get("tensor_parallel_size"))

    @property
    def pipeline_parallel(self) -> int:
        return parallel_size(self.kwargs.get("pipeline_parallel_size"))

    @property
    def data_parallel(self) -> int:
        return parallel_size(self.kwargs.get("data_parallel_size"))

    @property
    def gpus_per_replica(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def dtype(self) -> str | None:
        """The dtype that the model computes in, None if it can't be known."""
        asked = self.resolved.get("dtype") or "auto"
        if asked != "auto":
            return _DTYPE_NAMES.get(str(asked), str(asked))
        stated = self.subject.shape.dtype if self.subject.shape else None
        instance = self.group.instance if self.group else None
        lacks_bfloat16 = instance is not None and instance.gpu in WITHOUT_BFLOAT16
        if stated == "float32":
            stated = "bfloat16"
        return "float16" if stated == "bfloat16" and lacks_bfloat16 else stated

    @property
    def block_size(self) -> int | None:
        """Tokens per block, None where the engine chooses one by its attention backend."""
        asked = positive(self.kwargs.get("block_size"))
        if asked is not None:
            return asked
        if not self.subject.on_gpu:
            return 128
        if self.subject.shape is None or self.subject.shape.is_mla or self.subject.is_hybrid:
            return None
        return 16

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence in tokens, None if neither the document nor the model's config says it."""
        return positive(self.resolved.get("max_model_len"))


@dataclass(frozen=True)
class Subject:
    """A document under check.

    Args:
        loaded: the document, and where each of its values was written.
        facts: what was found out beside it.
    """

    loaded: LoadedDocument
    facts: Facts

    @property
    def document(self) -> Document:
        return self.loaded.document

    @cached_property
    def phases(self) -> tuple[PhaseView, ...]:
        """The phases that have engines of their own."""
        return tuple(PhaseView(self, name, section) for name, section in self.document.phases.items())

    def is_written(self, field: str) -> bool:
        """Whether the document or an override gives this field (or something in it) a value."""
        path = tuple(field.split("."))
        return path in self.loaded.origins

    def version_field(self, name: str) -> str:
        """The field that says which "ray" or "vllm" runs; on this machine none does."""
        image = self.document.image
        if self.is_local:
            return "on"
        if getattr(image, f"{name}_version") is not None:
            return f"image.{name}_version"
        return "image.base" if image.packages and image.base else "image.name"

    @property
    def is_split(self) -> bool:
        return self.document.topology == "split"

    @property
    def is_local(self) -> bool:
        return self.document.on == "local"

    @cached_property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """The worker pods of each phase; none on this machine."""
        return () if self.is_local else worker_groups(self.document)

    def without_arguments(self, fields: Collection[str]) -> "Subject":
        """The same, without the arguments of vLLM at these fields."""

        def left(holder: Document | PhaseSection, prefix: str) -> dict[str, Any]:
            given = holder.engine_kwargs.items()
            return {"engine_kwargs": {n: v for n, v in given if f"{prefix}engine_kwargs.{n}" not in fields}}

        document = self.document
        phases = {
            name: section.model_copy(update=left(section, f"{name}."))
            for name, section in (("prefill", document.prefill), ("decode", document.decode))
        }
        document = document.model_copy(update={**left(document, ""), **phases})
        return replace(self, loaded=replace(self.loaded, document=document))

    @cached_property
    def engine(self) -> Engine:
        """The engine that would run: of the image, or of this Python environment."""
        document, image = self.document, self.document.image
        if self.is_local:
            here = self.facts.installed
            if here is None or here.vllm is None:
                return Engine(LOCAL.ray, LOCAL.vllm, "the set-up of this version")
            return Engine(here.ray, here.vllm, "this Python environment")
        own = image.base if image.packages else image.name
        name = own or TESTED_IMAGE
        known = versions_of_image(name)
        said = image.vllm_version or (known.vllm if known else None)
        return Engine(
            ray=image.ray_version or (known.ray if known else None),
            vllm=said or _vllm_of(image.ray_version),
            source=f"the image {document.image.name or name}",
            vllm_by_ray=said is None and image.ray_version is not None,
        )

    @cached_property
    def machine(self) -> Machine | None:
        return self.facts.machine if self.is_local else None

    @property
    def on_gpu(self) -> bool:
        """Whether engines compute on GPUs: always on a cluster; here with GPUs and a vLLM that is built for them."""
        if not self.is_local:
            return True
        cuda = self.facts.installed is not None and self.facts.installed.cuda
        return cuda and self.machine is not None and bool(self.machine.gpus)

    @cached_property
    def _shape(self) -> ModelShape | str | None:
        config = self.facts.model.config
        if config is None:
            return None
        try:
            return ModelShape.from_config(config, self.facts.model.file)
        except ModelError as error:
            return error.message

    @property
    def shape(self) -> ModelShape | None:
        """The model's numbers; None if its config was not found or describes what is not known here."""
        return self._shape if isinstance(self._shape, ModelShape) else None

    @property
    def unknown_shape(self) -> str | None:
        """Why the config that was found can't be sized."""
        return self._shape if isinstance(self._shape, str) else None

    @cached_property
    def checkpoint_bytes(self) -> int | None:
        """Size of the weights: as they lie here, else as the config implies; None if neither is known."""
        if self.facts.model.checkpoint_bytes is not None or self.shape is None:
            return self.facts.model.checkpoint_bytes
        try:
            return self.shape.weights().checkpoint_bytes
        except ModelError:
            return None

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's config, with the fields of its text part over those of the whole; empty without one."""
        whole = self.facts.model.config or {}
        inner: object = next((whole[name] for name in _INNER_CONFIGS if name in whole), {})
        return {**whole, **inner} if isinstance(inner, Mapping) else whole

    @property
    def is_hybrid(self) -> bool:
        """Some of the model's layers keep a state per sequence."""
        return self.shape is not None and self.shape.has_recurrent_state

    @property
    def is_mla(self) -> bool:
        """Its attention is latent: one KV cache for all heads."""
        return self.shape is not None and self.shape.is_mla

    @property
    def is_multimodal(self) -> bool:
        return any(name.endswith("vision_config") or name == "audio_config" for name in self.config)


def zone_field(view: PhaseView) -> str:
    """The field that gives a phase its zone: its nodes', or their selector."""
    return view.nodes_path("zone") if view.nodes.zone else view.nodes_path("selector")


def positive(value: object) -> int | None:
    """`value` where it is a whole number above 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _vllm_of(ray: str | None) -> str | None:
    """The version of vLLM that a version of Ray pins."""
    return RAY_VLLM.get(minor(ray)) if ray else None
