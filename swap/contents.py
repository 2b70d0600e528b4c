"""Is what is declared the pair's: its image, its artifacts, each of the version that the image reads?"""

from __future__ import annotations

from engines.spec import Engine, Pair
from swap.artifacts import look_at, mend_of, source_of
from swap.drift import same_image
from swap.findings import Findings, off_loop
from swap.ports import Ledger, Outcome, Recipe

VERSION = "artifact_version"  # the key of `Evidence.extra` that holds the version of the artifact that was served


async def expect_contents(
    engine: Engine, pair: Pair, declared: Recipe, ledger: Ledger, found: Findings
) -> tuple[int | None, bool]:
    """The artifact's version, and whether image and files are worth hashing: what is refused already isn't."""
    before = len(found.refusals)
    _image(engine, pair, declared, found)
    contents = await found.ask(off_loop(lambda: look_at(engine, pair, declared), pair.label))
    headers = contents.headers if contents else {}
    for fault in contents.faults if contents else ():
        found.refuse(fault.what, fault.mend, passing=fault.passing)
    found.warnings += contents.warnings if contents else ()
    reads, how = _reads(engine, pair, declared, ledger, found)
    for path, header in headers.items():
        if reads not in (None, header.version):
            # The artifact trap: the image itself says no only when the other engine is down already.
            found.refuse(
                f"{pair.label}: the image {declared.image} reads artifacts of version {reads} ({how}), "
                f"but {path} is version {header.version}",
                f"give it a version {reads} artifact, or name an image that is built for version {header.version}",
            )
    version = next((header.version for header in headers.values()), None)
    return version, len(found.refusals) == before


def _reads(engine: Engine, pair: Pair, declared: Recipe, ledger: Ledger, found: Findings) -> tuple[int | None, str]:
    """Which artifact version the image reads, and who says so. An engine without a label for it reads them all."""
    if pair.reads is not None:
        return pair.reads, "the pair's `reads`"
    label = engine.profile.reads_label
    if label is None:
        return None, ""
    text = dict(declared.image_labels).get(label, "")
    if text.isdecimal():
        return int(text), f"its label {label}"
    if text:
        found.warnings.append(f"the image {declared.image} has {label}={text!r}, which is no version")
    for one in reversed(ledger.evidence()):
        served = one.extra.get(VERSION)
        same = one.subject.engine == engine.name and same_image(one.subject, declared)
        if one.outcome is Outcome.SERVED and same and isinstance(served, int):
            return served, f"it served that on {one.when}"
    return None, ""


def _image(engine: Engine, pair: Pair, declared: Recipe, found: Findings) -> None:
    """What is declared must be the pair's image: a compose file that ignores the pair's `env` gives another."""
    if not declared.contained or pair.image == declared.image_id:
        return
    if _full_name(pair.image) != _full_name(declared.image):
        found.refuse(
            f"{pair.label} names the image {pair.image}, but {source_of(engine)} gives {declared.image}", mend_of(pair)
        )


def _full_name(image: str) -> str:
    name = image.removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"
