//! `tailwater hash-password`: lines that the server accepts, from a pipe and from a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::support::{request, server, start_server};

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.arg("hash-password").args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command with `input` as standard input.
fn run(words: &[&str], input: &[u8]) -> Output {
    let mut child = command(words).stdin(Stdio::piped()).spawn().unwrap();
    // A command that fails early reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Result of the command on a terminal on which `typed` is typed, and what the terminal shows.
fn run_on_terminal(words: &[&str], typed: &[&[u8]]) -> (Output, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let terminal = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    let before = tcgetattr(&terminal).unwrap().local_modes;
    assert!(before.contains(LocalModes::ECHO));
    let child = command(words)
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal.try_clone().unwrap())
        .spawn()
        .unwrap();
    let mut screen = File::from(master);
    let mut shown = Vec::new();
    for line in typed {
        // Each line follows its prompt.
        let prompts = shown.iter().filter(|byte| **byte == b':').count();
        while shown.iter().filter(|byte| **byte == b':').count() == prompts {
            let mut piece = [0; 256];
            let length = screen.read(&mut piece).unwrap();
            shown.extend_from_slice(&piece[..length]);
        }
        screen.write_all(line).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(tcgetattr(&terminal).unwrap().local_modes, before, "the terminal is as before");
    drop(terminal);
    // Once no process has the terminal open, a read ends with an error after the remaining output.
    let _ = screen.read_to_end(&mut shown);
    (output, text(&shown))
}

#[test]
fn printed_line_is_accepted_by_the_server() {
    let output = run(&["alice"], b"open sesame\r\nsecond line\n");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let line = text(&output.stdout);
    assert!(line.starts_with("alice:$y$j9T$") && line.ends_with('\n'), "{line}");
    let server = start_server(
        server().file("html/index.html", "in").file("conf/users", line),
        "auth_basic closed; auth_basic_user_file users;",
    );
    for (credentials, status) in [
        ("YWxpY2U6b3BlbiBzZXNhbWU=", 200), // alice:open sesame
        ("YWxpY2U6b3Blbg==", 401),         // alice:open
    ] {
        let response = request(&server, "GET /", &[&format!("Authorization: Basic {credentials}")]);
        assert_eq!(response.status, status, "{credentials}");
    }
}

#[test]
fn hash_alone_has_a_new_salt_each_time() {
    let [one, other] = [run(&[], b"secret"), run(&[], b"secret\n")].map(|output| text(&output.stdout));
    assert!(one.starts_with("$y$j9T$") && one.ends_with('\n'), "{one}");
    assert_ne!(one, other);
}

#[test]
fn unusable_input_is_refused() {
    for (words, input, expected) in [
        (&[][..], &b""[..], "the password is empty"),
        (&[], b"\nsecret\n", "the password is empty"),
        (&[], b"a\tb\n", "control character"),
        (&[], &[b'a'; 600], "more than 512 bytes"),
        (&[], &[b'a'; 100_000], "more than 512 bytes"),
        (&["a:b"], b"secret\n", "the name of a user"),
        (&[""], b"secret\n", "the name of a user"),
        (&["alice", "secret"], b"secret\n", "never from the command line"),
        (&["--password=secret"], b"secret\n", "invalid option"),
    ] {
        let output = run(words, input);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stdout.is_empty() && text(&output.stderr).contains(expected), "{words:?} {output:?}");
    }
}

#[test]
fn terminal_asks_twice_and_does_not_show_the_password() {
    let (output, shown) = run_on_terminal(&["alice"], &[b"open sesame\n", b"open sesame\n"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).starts_with("alice:$y$"), "{output:?}");
    assert_eq!(shown, "Password: \r\nAgain: \r\n");

    let (output, shown) = run_on_terminal(&[], &[b"open sesame\n", b"open sesamy\n"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(shown.contains("the passwords differ") && !shown.contains("sesam"), "{shown}");

    let (output, shown) = run_on_terminal(&[], &[b"open\x03"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(shown.contains("interrupted") && !shown.contains("open"), "{shown}");
}
