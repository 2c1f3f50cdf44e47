"""Models on a hub: a repository with the exported model and its card. It needs huggingface_hub."""

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from pyro_fmvae.runs.export import export
from pyro_fmvae.runs.run import Run

MODEL: Final = "model.fmvae"
CARD: Final = "README.md"


def push(run: Run, model: Any, repository: str, private: bool, token: str | None) -> str:
    """Upload a run's model and card to a repository, which is made if there is none.

    Args:
        run, model: the run, and its model.
        repository: such as ``user/faces``.
        private: keep a new repository private.
        token: of the account; None: that of ``hf auth login``.

    Returns:
        The address of the commit.

    Raises:
        ValueError: huggingface_hub is not installed.
    """
    _check_installed()
    from huggingface_hub import HfApi

    hub = HfApi(token=token)
    with TemporaryDirectory() as folder:
        for name in (MODEL, CARD):
            export(run, model, Path(folder, name))
        hub.create_repo(repository, private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"pyro_fmvae: {run.recipe.title}"
        )
    return str(commit.commit_url)


def fetch(name: str | Path, revision: str | None, token: str | None) -> Path:
    """The model file of a local folder, or of a repository, which is downloaded once.

    Args:
        name: the folder, or the repository, such as ``user/faces``.
        revision: of the repository: branch, tag or commit.
        token: of the account.

    Raises:
        FileNotFoundError: the folder holds no exported model.
        ValueError: huggingface_hub is not installed.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / MODEL).is_file():
            raise FileNotFoundError(f"{folder}: no exported model ({MODEL}) there")
        return folder / MODEL
    _check_installed()
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(str(name), MODEL, revision=revision, token=token))


def _check_installed() -> None:
    if find_spec("huggingface_hub") is None:
        raise ValueError("name: a hub needs huggingface_hub: pip install 'pyro_fmvae[hub]'")
