"""Settings: what the environment may say, and what stops the start."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from handler.config import BUNDLED_ARTIFACT, Settings, threads_available, variable
from handler.errors import ConfigError

NUMBERS = [spec.name for spec in fields(Settings) if spec.name != "artifact"]
MAY_BE_ZERO = {"threads", "max_new_tokens"}
POSITIVE = [name for name in NUMBERS if name not in MAY_BE_ZERO]


def test_defaults() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings() == Settings(
        artifact=BUNDLED_ARTIFACT,
        threads=0,
        max_document_bytes=50_000_000,
        max_document_pixels=60_000_000,
        max_pages=1000,
        page_dpi=200,
        max_page_px=3500,
        max_image_px=960,
        max_new_tokens=0,
    )


def test_every_field_is_read() -> None:
    environ = {variable(name): str(7 + i) for i, name in enumerate(NUMBERS)} | {"MINERU_ARTIFACT": "/models/a b"}
    settings = Settings.from_env(environ)
    assert settings.artifact == Path("/models/a b")
    assert [getattr(settings, name) for name in NUMBERS] == [7 + i for i in range(len(NUMBERS))]


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINERU_PAGE_DPI", "300")
    assert Settings.from_env().page_dpi == 300


@pytest.mark.parametrize("name", [spec.name for spec in fields(Settings)])
@pytest.mark.parametrize("text", ["", "  "])
def test_blank_means_default(name: str, text: str) -> None:
    """Templates hand over empty text for a parameter that is not set."""
    assert Settings.from_env({variable(name): text}) == Settings()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("text", ["four", "-1", "1.5", "1e3", "0x10", "4 GB", "None", "∞"])
def test_bad_numbers_stop_the_start(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({variable(name): text})
    spec = next(spec for spec in fields(Settings) if spec.name == name)
    assert caught.value.detail == f"{variable(name)} is not allowed as set: it takes {spec.metadata['allowed']}."


@pytest.mark.parametrize("name", POSITIVE)
def test_zero_is_refused_where_it_means_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match=variable(name)):
        Settings.from_env({variable(name): "0"})


@pytest.mark.parametrize("name", sorted(MAY_BE_ZERO))
def test_zero_means_automatic(name: str) -> None:
    assert getattr(Settings.from_env({variable(name): "0"}), name) == 0


def test_every_field_says_what_it_is_for() -> None:
    assert all(spec.metadata["what"] and spec.metadata["allowed"] for spec in fields(Settings))


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().threads = 2  # type: ignore[misc]


def test_threads_available() -> None:
    assert threads_available() >= 1
