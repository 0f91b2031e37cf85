//! Expectations of a configuration about the machine: files that exist, addresses of interfaces, names of hosts. Only a test of the
//! configuration looks, and does not wait long: a name server that is silent, or a disk that hangs, says nothing about the configuration.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tw_conf::{MachineCheck, MachineSubject, Sources};

use crate::configuration::bytes_path::path;
use crate::output::console::Console;

/// Time for all checks of one test.
const TIME: Duration = Duration::from_secs(2);
/// Threads that look: names are asked for at the same time.
const THREADS: usize = 8;

/// Reports what is not there. What is not known in time is not reported.
pub fn run(checks: Vec<MachineCheck>, sources: &Sources, console: &Console) {
    let absent = absent(checks.iter().map(|check| check.subject.clone()).collect());
    let messages = checks.into_iter().filter(|check| absent.contains(&check.subject));
    let messages = tw_conf::said_once(messages.map(|check| check.message).collect(), sources);
    messages.iter().for_each(|message| console.conf(message, sources));
}

/// The subjects that are not there.
fn absent(subjects: HashSet<MachineSubject>) -> HashSet<MachineSubject> {
    let deadline = Instant::now() + TIME;
    let count = subjects.len();
    let queue = Arc::new(Mutex::new(subjects.into_iter()));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..THREADS.min(count) {
        let queue = queue.clone();
        let sender = sender.clone();
        // A thread that does not finish in time ends with the process.
        let started = thread::Builder::new().spawn(move || {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(subject) = next else { return };
                let is_absent = is_absent(&subject);
                if sender.send((subject, is_absent)).is_err() {
                    return;
                }
            }
        });
        if started.is_err() {
            break;
        }
    }
    drop(sender);
    let mut answers = HashMap::with_capacity(count);
    while let Ok((subject, is_absent)) =
        receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        answers.insert(subject, is_absent);
    }
    answers.into_iter().filter(|(_, is_absent)| *is_absent).map(|(subject, _)| subject).collect()
}

/// Looks for one. What this user may not see may be there. May wait for a disk or a name server.
fn is_absent(subject: &MachineSubject) -> bool {
    match subject {
        MachineSubject::Path(name) => fs::metadata(path(name)).is_err_and(|error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        }),
        MachineSubject::Address(ip) => {
            UdpSocket::bind((*ip, 0)).is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        }
        MachineSubject::Host(host) => (&**host, 0).to_socket_addrs().is_err(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_things_are_found() {
        let file = |name: &str| MachineSubject::Path(name.as_bytes().into());
        let address = |text: &str| MachineSubject::Address(text.parse().unwrap());
        let host = |name: &str| MachineSubject::Host(name.into());
        let there = [file("/"), address("127.0.0.1"), host("127.0.0.1"), host("localhost")];
        // The address is one of documentation.
        let missing = [file("/none/none"), file("/dev/null/none"), address("192.0.2.7")];
        let machine_subjects = absent(there.iter().chain(&missing).cloned().collect());
        assert_eq!(machine_subjects, missing.into_iter().collect());
        assert!(absent(HashSet::new()).is_empty());
    }
}
