"""What a process uses of its machine, as far as the system says it."""

import os
from pathlib import Path

import pytest

from magnetar.admin.metrics import host
from magnetar.admin.metrics.host import Host, Process


def machine(root: Path, **files: str) -> Path:
    """A folder with the files of a system; `__` stands for a slash."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def card(root: Path, name: str, received: int, sent: int, speed: str = "1000\n") -> None:
    """A network card that carried so many bytes."""
    folder = root / "sys/class/net" / name
    (folder / "device").mkdir(parents=True, exist_ok=True)
    (folder / "statistics").mkdir(exist_ok=True)
    (folder / "speed").write_text(speed)
    (folder / "statistics/rx_bytes").write_text(f"{received}\n")
    (folder / "statistics/tx_bytes").write_text(f"{sent}\n")


class Clock:
    """`time.monotonic` that a test moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        patch.setattr(host.time, "monotonic", lambda: self.now_s)
        patch.setattr(host.time, "time", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_figures_of_this_process() -> None:
    told = Host().process()
    assert told.cpu_s > 0
    assert told.resident_bytes is not None and told.virtual_bytes is not None
    assert 1 << 20 < told.resident_bytes < told.virtual_bytes
    assert told.start_s is not None and told.start_s > 1_500_000_000
    with Path(os.devnull).open():
        more = Host().process()
    assert told.open_fds is not None and more.open_fds == told.open_fds + 1
    assert told.max_fds is None or told.max_fds >= told.open_fds


def test_a_system_without_proc_says_less(tmp_path: Path) -> None:
    told = Host(tmp_path).process()
    assert told.cpu_s > 0
    assert told[1:5] == (None, None, None, None)
    usage = Host(tmp_path).usage(told)
    assert (usage.memory, usage.bandwidth_in, usage.bandwidth_out) == (0.0, 0.0, 0.0)
    assert 0 <= usage.cpu <= 100


def test_shares_are_of_the_time_since_the_last_look_and_of_what_a_container_may_use(
    tmp_path: Path, clock: Clock
) -> None:
    limits = {"sys__fs__cgroup__cpu.max": "50000 100000\n", "sys__fs__cgroup__memory.max": "1000000\n"}
    looked = Host(machine(tmp_path, **limits))
    process = Process(1.0, resident_bytes=250_000, start_s=990.0)
    first = looked.usage(process)
    assert (first.cpu, first.memory) == (pytest.approx(20.0), 25.0), "1 s of 10 s since the start, of half a processor"
    clock.now_s += 10
    assert looked.usage(process._replace(cpu_s=3.5)).cpu == pytest.approx(50.0)
    clock.now_s += 1
    assert looked.usage(process._replace(cpu_s=4.0)).cpu == pytest.approx(50.0), "too soon: what was told before"
    clock.now_s += 9
    assert looked.usage(process._replace(cpu_s=3.5 + 2.5)).cpu == pytest.approx(50.0), "the time in between counts"


def test_network_cards_that_tell_their_speed(tmp_path: Path, clock: Clock) -> None:
    card(tmp_path, "eth0", 0, 0)
    card(tmp_path, "eth1", 0, 0, speed="-1\n")
    (tmp_path / "sys/class/net/lo").mkdir()
    looked = Host(tmp_path)
    assert looked.usage(Process(1.0)).bandwidth_in == 0
    clock.now_s += 10
    card(tmp_path, "eth0", 125_000_000, 250_000_000)
    told = looked.usage(Process(1.0))
    assert (told.bandwidth_in, told.bandwidth_out) == (pytest.approx(10.0), pytest.approx(20.0))
    assert (told.in_bytes_per_s, told.network_bytes_per_s) == (pytest.approx(12.5e6), 125e6)
    card(tmp_path, "eth0", 5, 5)  # taken out and put in again
    clock.now_s += 10
    assert looked.usage(Process(1.0)).bandwidth_in == 0


def test_a_limit_of_memory_that_is_none(tmp_path: Path) -> None:
    unlimited = {
        "sys__fs__cgroup__memory.max": "max\n",
        "sys__fs__cgroup__memory__memory.limit_in_bytes": "9223372036854771712\n",
    }
    told = Host(machine(tmp_path, **unlimited)).usage(Process(1.0, resident_bytes=1))
    assert told.memory_limit_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
