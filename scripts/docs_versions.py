"""The tables of docs/explanation/versions.md: what containers have, and what changed with which version."""

from __future__ import annotations

from docs_markdown import markdown


def containers() -> str:
    """What the images of the table have."""
    from megatron_memory_estimator.inputs.containers import ANCHORS
    from megatron_memory_estimator.job.hardware import LIBRARIES, text_of

    rows = []
    for name, libraries in ANCHORS.items():
        for tag in sorted({tag for anchors in libraries.values() for tag in anchors}):
            cells = []
            for setting in LIBRARIES:
                low, high = libraries.get(setting, {}).get(tag, (None, None))
                same = text_of(high) if high else ""
                cells.append(f"{text_of(low)} to {same}" if low and high and low != high else same)
            rows.append((f"`nvcr.io/nvidia/{name}:{tag[0]}.{tag[1]:02}`", *cells))
    return markdown(("image", *LIBRARIES.values()), rows)


def versions() -> str:
    """Every change with what was before it."""
    from megatron_memory_estimator.job.hardware import LIBRARIES, text_of
    from megatron_memory_estimator.versions import CHANGES

    rows = [
        (LIBRARIES[one.setting], text_of(one.since), one.before, "loading a checkpoint" if one.loading else "training")
        for one in CHANGES
    ]
    return markdown(("library", "since", "before it", "in"), rows)


TABLES = {"containers": containers, "versions": versions}
