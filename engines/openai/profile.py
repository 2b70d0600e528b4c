"""Any other OpenAI-compatible server, of which nothing is known: only a completion shows that it is ready.

It has no sign, so only errors can show that it is useless (`engines.failing`); a completion of ours confirms them.
Its artifacts can't be told from its command line (a folder, a name on a hub): the pair's configuration names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engines.openai.probe import chat_probe
from engines.spec import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Api, Profile, Settling


def artifacts(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG001  (a profile's signature)
    return ()


PROFILE = Profile(
    name="openai",
    default_port=8000,
    sign=None,
    probe=chat_probe,
    concurrency=1,
    settling=Settling.AT_ONCE,
    settle_limit=60.0,
    client_paths={
        CHAT: Api.CHAT,
        COMPLETIONS: Api.COMPLETIONS,
        RESPONSES: Api.RESPONSES,
        EMBEDDINGS: Api.EMBEDDINGS,
    },
    stop_grace=60.0,
    start_deadline=600.0,
    artifacts=artifacts,
)
