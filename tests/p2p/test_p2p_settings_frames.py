"""The size of frames and messages, as an operator may set it."""

from __future__ import annotations

import pytest

from recon_node.p2p import P2PSettings
from recon_node.p2p.settings import MAX_FRAME, MESSAGE_OVERRUN, MIB
from recon_node.settings import Settings, SettingsError, load_settings


def test_a_node_says_and_takes_as_much_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECON_NODE_MESSAGE_BYTES", str(2 * MIB))
    p2p = load_settings(flags={"max_frame": 8 * MIB}).p2p
    assert p2p.max_frame == 8 * MIB
    assert p2p.session_settings.message_bytes == 2 * MIB


def test_messages_are_kept_below_frames() -> None:
    p2p = load_settings(flags={"message_bytes": 8 * MIB}).p2p
    assert p2p.max_frame == MIB
    assert p2p.session_settings.message_bytes == MIB - MESSAGE_OVERRUN


@pytest.mark.parametrize("size", [1000, MAX_FRAME + 1])
def test_frames_that_hold_no_event_or_fill_the_memory_are_refused(size: int) -> None:
    with pytest.raises(SettingsError, match="max-frame"):
        load_settings(flags={"max_frame": size})
    with pytest.raises(ValueError, match="max_frame"):
        P2PSettings(max_frame=size)


def test_the_defaults_are_those_of_the_network_side() -> None:
    assert Settings().p2p.session_settings == P2PSettings().session_settings
