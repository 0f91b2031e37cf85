use std::sync::Arc;
use std::time::{Duration, Instant};

use tailwater_commands::configuration::certificate_watch::WatchedCertificates;
use tailwater_commands::configuration::conf::Source;
use tw_conf::MemoryFiles;
use tw_core::shared_objects::SharedObjects;
use tw_testkit::process::Group;
use tw_testkit::wait;

use super::supervise::SHORT_LIFE;
use super::*;
use crate::ipc::channel::{Channel, WorkerReply};
use crate::master::child::tests::{actor, inbox};
use crate::master::handover::CheckedConfig;
use crate::master::liveness::SIGN_INTERVAL;
use crate::master::timeouts::STOP_TIMEOUT;
use crate::worker::sandbox::ProcessRole;

fn handover() -> Handover {
    let source = Source::text(b"/".to_vec(), "conf", b"events { }".to_vec());
    let config = source.load(&SharedObjects::default(), &Console::quiet()).unwrap().config;
    Handover {
        checked: CheckedConfig::default(),
        scripts: None,
        rules: SandboxRules::of(&config, ProcessRole::Worker),
        source,
        files: MemoryFiles::default(),
        concealed: Vec::new(),
        used: WatchedCertificates::new(),
        sockets: Arc::default(),
        logs: Vec::new(),
        keys: Rc::default(),
        env: Vec::new(),
        identity: None,
        is_daemon: false,
        sign_interval: SIGN_INTERVAL,
        shutdown_timeout: None,
    }
}

/// Workers with one that serves and one that leaves. The next one would be started later, not at once.
fn workers(current: Child, leaving: Child) -> Workers {
    let handover = handover();
    Workers {
        current: Some(current),
        leaving: vec![leaving],
        rules: handover.rules.clone(),
        handover,
        short_life: true,
        again_at: None,
        reloads: Reloads::default(),
        inbox: Rc::new(inbox()),
        links: Processes::default(),
    }
}

/// Fate of the serving process.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Serves,
    Leaves,
    Killed,
}

#[test]
fn worker_with_an_invalid_message_is_ended_and_no_other() {
    let refused = || WorkerReply::Refused { message: "no".into(), hint: None };
    let reply = |answer: WorkerReply| move |worker: &Channel| worker.send(&answer, &[]).unwrap();
    type Act = Box<dyn Fn(&Channel)>;
    let table: [(&str, bool, Act, Expected); 8] = [
        ("turns", false, Box::new(reply(WorkerReply::Turning)), Expected::Serves),
        ("leaves", false, Box::new(reply(WorkerReply::Leaving)), Expected::Leaves),
        ("serves unasked", false, Box::new(reply(WorkerReply::Serving)), Expected::Killed),
        ("refuses unasked", false, Box::new(reply(refused())), Expected::Killed),
        (
            "nonsense",
            false,
            Box::new(|worker: &Channel| worker.send(&200_u32, &[]).unwrap()),
            Expected::Killed,
        ),
        ("closed", false, Box::new(Channel::stop_talking), Expected::Leaves),
        ("serves too late", true, Box::new(reply(WorkerReply::Serving)), Expected::Leaves),
        ("refuses too late", true, Box::new(reply(refused())), Expected::Serves),
    ];
    let console = Console::quiet();
    for (what, owes_answer, act, expected) in table {
        let (mut current, worker, process) = actor();
        let (leaving, _other, other_process) = actor();
        let pid = current.pid();
        current.owes_answer = owes_answer;
        let mut workers = workers(current, leaving);
        assert_eq!(workers.can_follow(&handover()), !owes_answer);
        act(&worker);
        assert_eq!(workers.listen(&console), what == "turns");
        let killed = |process: &Group| wait::until(wait::TIMEOUT, || process.ended());
        let fate = match workers.current {
            Some(_) => Expected::Serves,
            None if expected == Expected::Killed && killed(&process) => Expected::Killed,
            None => Expected::Leaves,
        };
        assert_eq!(fate, expected, "{what}");
        assert_eq!(process.ended(), expected == Expected::Killed, "{what}");
        assert_eq!(workers.again_at.is_some(), expected != Expected::Serves, "{what}");
        let is_leaving = workers.leaving.iter().any(|child| child.pid() == pid);
        assert_eq!(is_leaving, expected != Expected::Serves, "{what}");
        assert!(!other_process.ended(), "{what}");
        // Until the process is waited for, there is no descriptor to poll, which would spin.
        assert_eq!(workers.poll_fd().is_some(), expected == Expected::Serves, "{what}");
        if what == "closed" {
            // The process gets a moment to end by itself.
            workers.again_at = None;
            workers.expire(Instant::now() + SHORT_LIFE, &console);
            assert!(killed(&process));
        }
        if what == "serves too late" {
            assert!(worker.receive::<WorkerCommand>().unwrap().is_none(), "it is told to finish");
        }
    }
}

#[test]
fn a_worker_process_has_its_time_to_finish() {
    let (current, worker, _process) = actor();
    let (leaving, ..) = actor();
    let mut workers = workers(current, leaving);
    workers.handover.shutdown_timeout = Some(Duration::from_secs(5));
    workers.release(false, None);
    assert!(matches!(
        worker.receive::<WorkerCommand>(),
        Ok(Some((WorkerCommand::Quit { is_replaced: false }, _)))
    ));
    let until = |workers: &Workers| workers.leaving.iter().filter_map(|child| child.until).min();
    assert!(until(&workers).is_some_and(|until| until > Instant::now() + Duration::from_secs(5)));
    workers.stop();
    assert!(matches!(worker.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Stop, _)))));
    assert!(until(&workers).is_some_and(|until| until <= Instant::now() + STOP_TIMEOUT));
    assert!(!workers.is_over());
}

#[test]
fn a_process_that_a_disk_holds_is_not_waited_for() {
    let (current, _worker, _process) = actor();
    let (mut killed, ..) = actor();
    let (leaves, _other, _others) = actor();
    // Its end is not noted, as if SIGCHLD did not come.
    killed.kill();
    let pid = killed.pid();
    let other = leaves.pid();
    let mut workers = workers(current, killed);
    workers.leaving.push(leaves);
    let has = |workers: &Workers, pid| workers.leaving.iter().any(|child| child.pid() == pid);
    let console = Console::quiet();
    let mut looks = 0;
    while has(&workers, pid) {
        let due = workers.leaving.iter().map(Child::next_look).min().unwrap();
        workers.expire(due, &console);
        looks += 1;
    }
    assert!(looks > 3 && has(&workers, other), "{looks}");
    assert!(workers.deadline().is_some());
}

#[test]
fn silent_worker_with_a_silent_successor_is_ended() {
    let (current, ..) = actor();
    let (mut silent, _, process) = actor();
    let (leaves, _, other) = actor();
    silent.is_silent = true;
    let mut workers = workers(current, silent);
    workers.leaving.push(leaves);
    workers.end_silent(&Console::quiet());
    assert!(wait::until(wait::TIMEOUT, || process.ended()));
    assert!(!other.ended() && workers.current.is_some());
}

#[test]
fn a_sign_of_life_ends_a_silence() {
    let (current, worker, _process) = actor();
    let (leaving, ..) = actor();
    let mut workers = workers(current, leaving);
    let console = Console::quiet();
    // Each look at the worker is in time, whatever time has passed since the silence began.
    let is_too_long = |workers: &mut Workers, looks: u32| {
        let silence = &mut workers.current.as_mut().unwrap().silence;
        (0..looks).fold(false, |_, _| silence.is_too_long(silence.next_look()))
    };
    assert!(!is_too_long(&mut workers, 3));
    worker.send(&WorkerReply::Turning, &[]).unwrap();
    assert!(workers.listen(&console));
    assert!(!is_too_long(&mut workers, 3));
    assert!(is_too_long(&mut workers, 4));
}

/// Worker process that does not read.
fn deaf() -> (Child, Channel, Group) {
    let actor = actor();
    while actor.0.order_until(Instant::now(), &WorkerCommand::Quit { is_replaced: false }, &[]).is_ok() {}
    actor
}

#[test]
fn all_that_are_deaf_are_waited_for_together() {
    // Waiting for one process after the other would take a second each.
    const COUNT: u64 = 2 * wait::TIMEOUT.as_secs();
    let (sender, receiver) = std::sync::mpsc::channel();
    let master = std::thread::spawn(move || {
        let (current, worker, _process) = actor();
        let (leaving, ..) = actor();
        let mut workers = workers(current, leaving);
        let deaf = (0..COUNT).map(|_| deaf());
        let (children, _ends): (Vec<_>, Vec<_>) =
            deaf.map(|(child, channel, process)| (child, (channel, process))).unzip();
        workers.leaving = children;
        sender.send(true).unwrap();
        workers.reopen(Vec::new(), &Console::quiet());
        // The last worker of all reads.
        sender
            .send(matches!(worker.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Reopen(_), _)))))
            .unwrap();
    });
    // Starting so many processes takes time, which is not measured.
    assert_eq!(receiver.recv(), Ok(true));
    assert_eq!(receiver.recv_timeout(wait::TIMEOUT), Ok(true));
    // A thread that outlives its test would leave its processes behind.
    master.join().unwrap();
}

#[test]
fn unreachable_worker_is_replaced() {
    let (current, worker, process) = actor();
    let (leaving, other, _other_process) = actor();
    drop(worker);
    let mut workers = workers(current, leaving);
    // The other process has its end, too, for a moment: its starter goes on before that is closed by exec().
    let is_lost = wait::until(wait::TIMEOUT, || {
        workers.reopen(Vec::new(), &Console::quiet());
        workers.current.is_none()
    });
    assert!(is_lost && workers.again_at.is_some() && !process.ended());
    assert!(matches!(other.receive::<WorkerCommand>(), Ok(Some((WorkerCommand::Reopen(_), _)))));
}
