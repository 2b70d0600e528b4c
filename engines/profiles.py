"""Every kind of engine that the configuration can name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.ninfer.profile import PROFILE as NINFER
from engines.openai.profile import PROFILE as OPENAI
from engines.spec import Profile
from engines.strata.profile import PROFILE as STRATA

PROFILES: Mapping[str, Profile] = MappingProxyType({p.name: p for p in (NINFER, STRATA, LLAMACPP, OPENAI)})
