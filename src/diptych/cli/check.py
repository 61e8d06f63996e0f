"""`diptych check`: all findings at once, then the memory budget; or the document and where each value came from."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from diptych.check import Finding, LinkSetting, Machine, PhaseMemory, Report, Transfer, check_file
from diptych.cli.cluster_checks import ask_account, ask_cluster
from diptych.cli.console import err, format_bytes, format_ms, out, print_dim, safe, write

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"error": "bold red", "warning": "yellow"}
_BAR_WIDTH = 60
_AMOUNTS = ("memory", "volume_size", "hugepages_2mi")
_PARTS = (
    ("weights", "█", "cyan"),
    ("computing", "▓", "magenta"),
    ("KV cache", "▒", "green"),
    ("free", "·", "dim"),
)


def run_check(
    file: Path | None, overrides: list[str], *, show: bool, json_output: bool, offline: bool, ray: bool
) -> int:
    """Check a document and print what was found; 0 without errors, 2 with some."""
    report = check_file(
        file,
        overrides,
        offline=offline,
        machine=this_machine,
        account=ask_account,
        cluster=ask_cluster,
    )
    if ray:
        report = _with_ray(report)
    if json_output:
        write(json.dumps(report.as_json(show=show), indent=2, ensure_ascii=False) + "\n")
        return 0 if report.ok else 2
    console = out()
    if show:
        _print_document(console, report)
    print_findings(console, report)
    _print_budget(console, report)
    _print_link(console, report.link)
    return 0 if report.ok else 2


def this_machine() -> Machine:
    """The memory of this machine and its GPUs."""
    from diptych.local.hardware import detect

    hardware = detect()
    return Machine(hardware.memory_total, hardware.gpus)


def _with_ray(report: Report) -> Report:
    from dataclasses import replace

    from diptych.check.findings import in_order
    from diptych.check.ray_schema import ask_ray

    if report.subject is None:
        return report
    print_dim(err(), "asking Ray's own schema …")
    return replace(report, findings=tuple(in_order([*report.findings, *ask_ray(report.subject)])))


def print_findings(console: "Console", report: Report) -> None:
    """Print all findings, and how many there are."""
    for finding in report.findings:
        console.print(_text(finding), soft_wrap=True)
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = len(report.findings) - errors
    if report.findings:
        console.print()
    if report.left_out and report.subject is not None:
        left = ", ".join(report.left_out)
        print_dim(
            console,
            f"The rest was checked without what is wrong in itself ({left}), and what stands beside it.",
        )
    if not report.findings:
        console.print(Text("Nothing is wrong with it.", style="green"))
        return
    counted = ", ".join([_count(errors, "error"), _count(warnings, "warning")])
    console.print(Text(f"{counted}. docs/checks.md explains each code.", style="bold" if errors else ""))


def _text(finding: Finding) -> Text:
    place = f"{finding.where}: {finding.field}" if finding.field else finding.where
    text = Text.assemble(
        (f"{finding.severity} {finding.code}", _STYLES[finding.severity]), "  ", (safe(place), "bold"), "\n"
    )
    text.append(safe("\n".join(f"    {line}" for line in finding.what.splitlines())))
    text.append(f"\n    → {safe(finding.do)}", style="dim")
    return text


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _print_budget(console: "Console", report: Report) -> None:
    if not report.memory or report.subject is None:
        return
    console.print()
    console.print(_budget_table(report.memory))
    console.print()
    for memory in report.memory:
        console.print(_bar(memory))
    legend = (piece for name, mark, style in _PARTS for piece in ((mark, style), f" {name}   "))
    console.print(Text.assemble(" " * 12, *legend))
    if report.transfer is not None:
        console.print()
        console.print(Text(_transfer(report.transfer)), soft_wrap=True)
    console.print()
    found = report.subject.facts.model.found
    print_dim(
        console, f"Computed from the model's config ({found}); computing is an estimate, the rest is counted."
    )
    if report.refused:
        print_dim(console, f"Without what vLLM refuses: {', '.join(report.refused)}.")
    for note in dict.fromkeys(note for memory in report.memory for note in memory.budget.notes):
        print_dim(console, note)


def _budget_table(memories: Iterable[PhaseMemory]) -> Table:
    memories = list(memories)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("memory")
    for memory in memories:
        table.add_column(memory.phase)
    lines = [
        ("of", [memory.device for memory in memories]),
        ("in all", [format_bytes(memory.total_bytes) for memory in memories]),
        ("for the engine", [_share(memory) for memory in memories]),
        ("weights", [format_bytes(memory.budget.weights) for memory in memories]),
        ("computing", [format_bytes(computing(memory)) for memory in memories]),
        ("KV cache", [format_bytes(max(0, memory.budget.kv_cache)) for memory in memories]),
        ("in tokens", [f"{memory.budget.tokens:,}" for memory in memories]),
        ("in sequences", [_sequences(memory) for memory in memories]),
        ("one of them", [format_bytes(memory.budget.sequence_bytes) for memory in memories]),
    ]
    for name, values in lines:
        table.add_row(name, *values)
    return table


def computing(memory: PhaseMemory) -> int:
    """What neither weights nor KV cache take: activations, the CUDA context and libraries, CUDA graphs; bytes."""
    return memory.budget.activations + memory.budget.outside_torch + memory.budget.cuda_graphs


def _share(memory: PhaseMemory) -> str:
    share = memory.budget.requested / memory.total_bytes
    return f"{format_bytes(memory.budget.requested)} ({share:.0%})"


def _sequences(memory: PhaseMemory) -> str:
    budget = memory.budget
    return f"{budget.sequences:.1f} of {budget.max_model_len:,} tokens"


def _bar(memory: PhaseMemory) -> Text:
    """One line: weights, computing, KV cache and what is left free, in proportion."""
    budget = memory.budget
    sizes = [budget.weights, computing(memory), max(0, budget.kv_cache)]
    whole = max(memory.total_bytes, sum(sizes))
    sizes.append(whole - sum(sizes))
    text, end, filled = Text(f"{memory.phase:<11} "), 0, 0
    for size, (_, mark, style) in zip(sizes, _PARTS, strict=True):
        end += size
        stop = round(_BAR_WIDTH * end / whole)
        text.append(mark * (stop - filled), style=style)
        filled = stop
    return text


def _transfer(transfer: Transfer) -> str:
    what = f"A KV transfer of {transfer.tokens:,} tokens carries {format_bytes(transfer.size_bytes)}"
    if transfer.seconds is None:
        return f"{what} through {transfer.link}."
    return f"{what}: at least {format_ms(transfer.seconds * 1000)} over {transfer.link}."


_ORIGINS = {"document": "from the document", "diptych": "chosen", "vllm": "vLLM's own"}


def _print_link(console: "Console", settings: Sequence[LinkSetting]) -> None:
    """What the KV transfer's link is told: name, value, where that is from, why."""
    if not settings:
        return
    console.print()
    console.print(Text("link", style="bold"))
    for each in settings:
        head = f"{safe(each.name):<28} {safe(str(each.value)):<14} {_ORIGINS[each.origin]:<18} "
        line = Text.assemble(head, (safe(each.reason), "dim"))
        console.print(line, soft_wrap=True)


def _print_document(console: "Console", report: Report) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in ("field", "value", "from"):
        table.add_column(name, overflow="fold")
    for field, value, origin in report.rows():
        style = "dim" if origin == "default" else ""
        table.add_row(Text(safe(field)), Text(safe(_shown(field, value))), Text(safe(origin)), style=style)
    console.print(table)
    console.print()


def _shown(field: str, value: Any) -> str:
    if value is None or value == {} or value == []:
        return "-"
    if field.endswith(_AMOUNTS) and isinstance(value, int):
        return format_bytes(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
