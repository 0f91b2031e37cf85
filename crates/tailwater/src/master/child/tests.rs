use std::io::Read as _;
use std::os::unix::net::UnixStream;

use tailwater_commands::cli::{PurgeMode, PurgeScope};
use tw_rt::signal::Signals;
use tw_testkit::process::Group;
use tw_testkit::wait;

use super::*;

/// A process that does nothing, with the end of the channel that is the worker's.
pub(in super::super) fn actor() -> (Child, Channel, Group) {
    let process = Group::new(Command::new("/bin/sleep").arg("600").process_group(0).spawn().unwrap());
    let (ours, theirs) = Channel::pair().unwrap();
    let pid = Pid::from_raw(process.pid().cast_signed()).unwrap();
    (Child::of(pid, ours, Rc::default()), Channel::of(theirs), process)
}

/// The signals of the calling thread; none comes.
pub(in super::super) fn inbox() -> SignalQueue {
    SignalQueue::new(Signals::take().unwrap())
}

fn configure(child: &mut Child, deadline: Instant, inbox: &SignalQueue) -> Result<(), Failure> {
    child.order_configuration(&WorkerCommand::Quit { is_replaced: false }, &[])?;
    child.wait_until_configured(deadline, inbox, false)
}

#[test]
fn a_worker_process_gives_no_orders_to_a_terminal() {
    let text = "no\n2026/01/01 [notice] all is well\r\x1b]0;title\x07\u{9b}2J\u{e9}";
    assert_eq!(without_controls(text), "no 2026/01/01 [notice] all is well  ]0;title  2J\u{e9}");
}

#[test]
fn purge_answer_reaches_its_client() {
    let (mut child, worker, _process) = actor();
    let order_purge = |child: &mut Child| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let order =
            Purge { cache: b"c".to_vec(), named: PurgeScope::Key(b"k".to_vec()), mode: PurgeMode::Hard };
        child.purge(Client::new(ours, rustix::process::getpid()), order);
        theirs.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        theirs
    };
    let response_on = |mut stream: UnixStream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let number = || match worker.receive::<WorkerCommand>() {
        Ok(Some((WorkerCommand::Purge(number, _), _))) => number,
        other => panic!("{other:?}"),
    };
    // Replies may come in any order, and any number of them is allowed.
    let reply = |number, is_done, said: Option<&str>| {
        worker.send(&WorkerReply::Purged { number, is_done, said: said.map(str::to_owned) }, &[]).unwrap();
    };
    let streams = [order_purge(&mut child), order_purge(&mut child)];
    let numbers = [number(), number()];
    reply(numbers[1], true, Some("a\nb"));
    reply(numbers[0], false, Some("no"));
    assert!(matches!((child.listen(), child.listen()), (ReadResult::Nothing, ReadResult::Nothing)));
    assert_eq!(streams.map(response_on), ["refused\nerror no\n", "done\nnotice a b\n"]);
    for _ in 0..=TALK_MAX {
        let stream = order_purge(&mut child);
        reply(number(), true, None);
        assert!(matches!(child.listen(), ReadResult::Nothing));
        assert_eq!(response_on(stream), "done\n");
    }
    // A reply without a client is ignored, and each client gets one.
    reply(numbers[0], true, None);
    assert!(matches!(child.listen(), ReadResult::Message(WorkerReply::Purged { .. })));
    // Purges beyond the limit, and those that a process leaves unfinished.
    let waiting: Vec<_> = (0..PURGES_MAX).map(|_| order_purge(&mut child)).collect();
    assert_eq!(response_on(order_purge(&mut child)), "refused\nemerg too many purges wait for a disk\n");
    child.stop_listening();
    assert!(waiting.into_iter().all(|stream| response_on(stream).is_empty()));
}

#[test]
fn whatever_a_worker_answers_the_master_goes_on() {
    let refused = || WorkerReply::Refused { message: "no".into(), hint: None };
    let flood = |worker: &Channel| {
        for _ in 0..=TALK_MAX {
            worker.send(&WorkerReply::Turning, &[]).unwrap();
        }
    };
    type Act<'a> = &'a dyn Fn(&Channel);
    let table: [(&str, Act<'_>, Result<(), &str>); 7] = [
        ("serves", &|worker| worker.send(&WorkerReply::Serving, &[]).unwrap(), Ok(())),
        (
            "serves after a sign of life",
            &|worker| {
                worker.send(&WorkerReply::Turning, &[]).unwrap();
                worker.send(&WorkerReply::Serving, &[]).unwrap();
            },
            Ok(()),
        ),
        ("refuses", &|worker| worker.send(&refused(), &[]).unwrap(), Err("no")),
        ("nonsense", &|worker| worker.send(&200_u32, &[]).unwrap(), Err("nonsense")),
        ("flood", &flood, Err("nonsense")),
        ("closed", &Channel::stop_talking, Err("closed its channel before it served")),
        ("silence", &|_| {}, Err("does not answer")),
    ];
    let inbox = inbox();
    for (what, act, expected) in table {
        let (mut child, worker, process) = actor();
        act(&worker);
        let deadline = if what == "silence" { Instant::now() } else { Instant::now() + wait::TIMEOUT };
        let outcome = configure(&mut child, deadline, &inbox).map_err(Fault::from);
        match (outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(fault), Err(text)) => assert!(fault.message.contains(text), "{what}: {fault}"),
            (outcome, _) => panic!("{what}: {outcome:?}"),
        }
        assert_eq!(child.owes_answer, !matches!(what, "serves" | "serves after a sign of life" | "refuses"));
        assert!(!process.ended(), "{what}: whether it is ended is decided elsewhere");
    }
}

#[test]
fn a_worker_that_serves_is_not_waited_for_without_signs_of_life() {
    let inbox = inbox();
    for (serves, expected) in [(true, "gives no sign of life"), (false, "does not answer")] {
        let (mut child, _worker, _process) = actor();
        child.serves = serves;
        // Each look at the worker is in time.
        while !child.silence.is_too_long(child.silence.next_look()) {}
        let deadline = if serves { Instant::now() + wait::TIMEOUT } else { Instant::now() };
        let failure = configure(&mut child, deadline, &inbox).unwrap_err();
        assert_eq!(matches!(failure, Failure::Unresponsive(_)), serves);
        assert!(Fault::from(failure).message.ends_with(expected) && child.owes_answer, "{expected}");
    }
}

#[test]
fn as_many_questions_as_the_master_has_are_answered() {
    let (mut child, worker, _process) = actor();
    let inbox = inbox();
    for _ in 0..2 * TALK_MAX {
        worker.send(&WorkerReply::Serving, &[]).unwrap();
        let deadline = Instant::now() + wait::TIMEOUT;
        configure(&mut child, deadline, &inbox).unwrap();
        assert!(matches!(worker.receive::<WorkerCommand>(), Ok(Some(_))));
    }
}

#[test]
fn exit_reason_of_a_killed_worker_is_known() {
    let (mut child, worker, process) = actor();
    child.kill();
    drop(worker);
    let deadline = Instant::now() + wait::TIMEOUT;
    let failure = configure(&mut child, deadline, &inbox()).unwrap_err();
    let message = Fault::from(failure).message;
    assert!(message.ends_with("exited on signal 9 before it served the configuration"), "{message}");
    assert!(process.ended());
}

#[test]
fn talk_is_counted_by_the_second() {
    let start = Instant::now();
    let mut talk = MessageRate { since: start, count: 0 };
    assert!((0..TALK_MAX).all(|_| !talk.is_too_much(start)));
    assert!(talk.is_too_much(start));
    assert!(!talk.is_too_much(start + TALK_SPAN));
}
