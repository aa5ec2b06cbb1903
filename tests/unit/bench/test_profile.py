"""What is made of py-spy's samples."""

from bench.profile import parsed, report

LINES = [
    "MainThread;main (app.py);run (site-packages/uvloop/loop.py);_take (/x/src/magnetar/wire/frames.py) 30",
    "MainThread;main (/x/magnetar/app.py);dumps (json/encoder.py) 10",
    "log;_loop (/x/magnetar/runtime/logthread.py);OsFile.sync (/x/magnetar/runtime/files.py) 50",
    "log;_loop (/x/magnetar/runtime/logthread.py);OsFile.writev (/x/magnetar/runtime/files.py) 10",
    "no samples at all",
]


def test_samples_are_counted_by_thread_by_part_and_by_function_and_waiting_is_not() -> None:
    text = report("a cell", parsed(LINES), "1 message/s")
    assert "50 samples" in text
    lines = [line.strip() for line in text.splitlines()]
    assert "80.0  MainThread" in lines
    assert "20.0  log" in lines
    assert "60.0  wire/frames" in lines
    assert "20.0  event loop" in lines
    assert "20.0  runtime/files.OsFile.writev" in lines
    assert "20.0  encoder.dumps" in lines
