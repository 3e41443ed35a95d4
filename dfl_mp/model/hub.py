"""Why transformers could not load something, in one readable line."""

from __future__ import annotations

from collections.abc import Iterator

from huggingface_hub import errors

MOST = 300
"""Characters of a reason that is quoted."""
ABSENT = "no such folder here, not in the local cache, and the hub is off or not reachable"
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.GatedRepoError, "its owner lets only users in who are logged in and have accepted its terms"),
    (errors.RepositoryNotFoundError, "there is no such folder here, and no such public model on the hub"),
    (errors.RevisionNotFoundError, "the hub has no such target.revision of it"),
    (errors.LocalEntryNotFoundError, ABSENT),
    (errors.OfflineModeIsEnabled, ABSENT),
)
"""What an error of the hub means; the first that fits."""


def reason(error: BaseException) -> str:
    """What is wrong, without advice about the library; transformers wraps what the hub says in errors of its own."""
    causes = list(_causes(error))
    for kind, text in REASONS:
        if any(isinstance(cause, kind) for cause in causes):
            return text
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= MOST else f"{text[: MOST - 1].rsplit(' ', 1)[0]} …"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
