//! Programs of every bad kind; a machine without Python has nothing to test.

use std::sync::LazyLock;
use std::thread;
use std::time::Instant;

use suites::{Program, Reference};

use super::*;

static STRONGEST: LazyLock<Option<Sandbox>> = LazyLock::new(|| {
    if let Err(err) = python() {
        eprintln!("nothing is tested: {err:#}");
        return None;
    }
    Some(Sandbox::open().unwrap())
});

/// Every level that works here, in a folder of its own.
fn sandboxes(wall: Duration) -> Vec<(Sandbox, tempfile::TempDir)> {
    let Some(strongest) = &*STRONGEST else {
        return Vec::new();
    };
    let mut levels = vec![strongest.level];
    if strongest.level == Level::Namespaces {
        levels.push(Level::LimitsOnly);
    }
    let sandbox = |level| {
        let places = tempfile::tempdir().unwrap();
        let sandbox = Sandbox {
            level,
            wall,
            places: places.path().to_owned(),
            ..strongest.clone()
        };
        (sandbox, places)
    };
    levels.into_iter().map(sandbox).collect()
}

/// Holds the verdict on `program`, in which PROOF stands for the proof, and that nothing of it is left.
fn check(wall: Duration, program: &str, want: bool) {
    for (sandbox, places) in sandboxes(wall) {
        let begin = Instant::now();
        let source = |proof: &str| program.replace("PROOF", &format!("'{proof}'"));
        let verdict = sandbox.passes(source).unwrap();
        assert_eq!(verdict, want, "{:?}: {program}", sandbox.level);
        assert!(begin.elapsed() < wall + 4 * DRAIN, "{program}");
        let left = fs::read_dir(places.path()).unwrap().count();
        assert_eq!(left, 0, "{program}");
        assert_eq!(
            running_in(places.path()),
            Vec::<PathBuf>::new(),
            "{program}"
        );
    }
}

/// Processes whose command line names something below a folder.
fn running_in(dir: &Path) -> Vec<PathBuf> {
    let dir = dir.to_str().unwrap();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let command = |path: &PathBuf| fs::read(path.join("cmdline")).unwrap_or_default();
    let names_it = |path: &PathBuf| String::from_utf8_lossy(&command(path)).contains(dir);
    processes.map(|p| p.path()).filter(names_it).collect()
}

#[test]
fn only_a_proof_that_is_the_last_word_of_a_program_that_ends_well_counts() {
    for (program, want) in [
        ("print(PROOF)", true),
        ("print('x' * 1000000)\nprint(PROOF)", true),
        (
            "import sys\nprint('e' * 1000000, file=sys.stderr)\nprint(PROOF)",
            true,
        ),
        ("", false),
        ("print(PROOF)\nprint('more')", false),
        ("print(PROOF)\nraise SystemExit(1)", false),
        ("raise SystemExit(0)", false),
        ("import os\nos._exit(0)", false),
        ("assert False\nprint(PROOF)", false),
        ("this is no Python", false),
        ("input()\nprint(PROOF)", false),
        ("def f(): f()\nf()\nprint(PROOF)", false),
    ] {
        check(WALL, program, want);
    }
}

#[test]
fn what_hangs_is_ended_and_leaves_nothing() {
    let fork = "import os\nwhile True:\n    try: os.fork()\n    except Exception: pass\n";
    let threads = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(60,)).start()\n";
    let programs = [
        "while True: pass",
        "import time\nprint(PROOF, flush=True)\ntime.sleep(60)",
        "while True: print('x' * 1000)",
        "import os\nos.close(1)\nos.close(2)\nwhile True: pass",
        "import signal\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        fork,
        threads,
    ];
    thread::scope(|scope| {
        for program in programs {
            scope.spawn(move || check(Duration::from_secs(2), program, false));
        }
    });
}

#[test]
fn processes_files_sockets_signals_and_much_memory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, made) = (dir.path().join("kept"), dir.path().join("made"));
    fs::write(&kept, "as it was").unwrap();
    let names = format!("kept, made = {kept:?}, {made:?}\n");
    for statement in [
        "os.fork()",
        "os.system('true')",
        "subprocess.run(['true'])",
        "os.execv('/bin/true', ['true'])",
        "multiprocessing.Process(target=print).start()",
        "multiprocessing.util.spawnv_passfds('/bin/sh', ['sh', '-c', f'touch {made}'], [])",
        "os.mkfifo(made)",
        "posix.mkfifo(made)",
        "open('here', 'w')",
        "open(made, 'w')",
        "open(kept, 'a')",
        "os.open(made, os.O_CREAT)",
        "pathlib.Path(made).mkdir()",
        "os.remove(kept)",
        "os.rename(kept, made)",
        "os.chmod(kept, 0)",
        "shutil.copy(kept, made)",
        "tempfile.NamedTemporaryFile()",
        "socket.socket()",
        "os.kill(os.getppid(), 9)",
        "ctypes.CDLL(None)",
        "bytearray(2 << 30)",
    ] {
        let modules = "import ctypes, multiprocessing, multiprocessing.util, os, pathlib, posix, shutil, socket, subprocess, tempfile\n";
        let program = format!("{modules}{names}{statement}\nprint(PROOF)");
        check(WALL, &program, false);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "as it was");
        assert!(!made.exists(), "{statement}");
    }
    let harmless =
        format!("{names}open(kept).read()\nprint('x', file=open('/dev/null', 'w'))\nprint(PROOF)");
    check(WALL, &harmless, true);
}

#[test]
fn namespaces_hold_where_the_hook_does_not_look() {
    for (sandbox, _places) in sandboxes(WALL) {
        if sandbox.level == Level::Namespaces {
            let made = sandbox.places.join("fifo");
            // As a hole in the hook would: the function itself, from before it was taken away.
            let program = format!(
                "import os, sys\nfor name in ('posix',): sys.modules.pop(name)\nimport posix\nposix.mkfifo({made:?})\n"
            );
            let source = |proof: &str| format!("{program}print('{proof}')");
            assert!(!sandbox.passes(source).unwrap());
            assert!(!made.exists());
        }
    }
}

#[test]
fn a_process_that_left_the_group_is_found_by_its_mark() {
    let mut child = Command::new("/bin/sh");
    let child = child.args(["-c", "echo; sleep 60; true"]).env(MARK, "test");
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    if Path::new("/proc/self/environ").exists() {
        kill_marked("test");
    } else {
        child.kill().unwrap();
    }
    // The shell's own child is gone too once nobody holds the pipe.
    assert_eq!(out.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_sandbox_that_fails_is_an_error_and_no_verdict() {
    for (mut sandbox, _places) in sandboxes(WALL) {
        sandbox.python = PathBuf::from("/bin/false");
        let error = sandbox.passes(str::to_owned).unwrap_err().to_string();
        assert!(
            error.starts_with("the sandbox failed: exit status: 1"),
            "{error}"
        );
    }
}

#[test]
fn an_output_keeps_both_ends() {
    let mut output = Output::default();
    let line = [b'x'; 1000];
    output.add(b"begin\n");
    (0..200).for_each(|_| output.add(&line));
    output.add(b"end");
    assert!(output.starts_with("begin") && output.ends_with("xend"));
    assert_eq!(
        (output.first.len(), output.last.len()),
        (KEPT_BYTES, KEPT_BYTES)
    );
}

const ASKED: &str = "Solve:\n```python\nimport math\n\n\ndef area(r: float) -> float:\n    \"\"\" Of a disc. \"\"\"\n\n```";

fn judged(answer: &str, reference: &Reference) -> Option<bool> {
    let program = Program::new(answer, ASKED, reference).unwrap();
    let (sandbox, _places) = sandboxes(WALL).into_iter().next()?;
    Some(sandbox.passes(|proof| program.source(proof)).unwrap())
}

#[test]
fn a_function_is_right_if_its_check_passes() {
    let test = "def check(candidate):\n    assert abs(candidate(1) - 3.14) < 0.01\n    assert math.pi * 4 == candidate(2)\n";
    let reference = Reference::Function {
        entry_point: "area".into(),
        test: test.into(),
    };
    for (answer, want) in [
        ("def area(r):\n    return math.pi * r ** 2", true),
        ("    return math.pi * r ** 2", true),
        ("```python\nreturn math.pi * r ** 2\n```", true),
        (
            "```python\nfrom __future__ import annotations\ndef area(r):\n    return math.pi * r ** 2\n\nif __name__ == '__main__':\n    print(area(float(input())))\n```",
            true,
        ),
        ("def area(r):\n    return 3.1 * r ** 2", false),
        ("I do not know.", false),
        ("", false),
        (
            "def area(r):\n    return math.pi * r ** 2\nexit = __import__('sys').exit\nexit(0)",
            false,
        ),
        ("def check(f): pass\ndef area(r): return 0", false),
    ] {
        if let Some(right) = judged(answer, &reference) {
            assert_eq!(right, want, "{answer}");
        }
    }
}

#[test]
fn asserts_take_the_last_function_for_the_one_that_no_prompt_names() {
    let reference = Reference::Asserts {
        test_imports: Vec::new(),
        test_list: vec!["assert math.isclose(twice(1), 2)".into()],
    };
    for (answer, want) in [
        ("def twice(x):\n    return 2 * x", true),
        (
            "def one(x): return x\ndef double(x): return 2 * one(x)\ndef main(): pass",
            true,
        ),
        ("def twice(x): return x\ndef double(x): return 2 * x", false),
        ("def double(x): return x", false),
        ("twice = 2", false),
        ("print('no function')", false),
    ] {
        if let Some(right) = judged(answer, &reference) {
            assert_eq!(right, want, "{answer}");
        }
    }
}
