//! Bytes and events that followers of a fill get.

use super::*;
use crate::tests::meta;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Wake;
use tw_disk::sim::Sim;
use tw_disk::{Account, Aio, CreateOptions, Disk, JobClass, JobSource, Pool};

const PIECE: u64 = 64 << 10;

fn file() -> File {
    let disk = Disk::simulated(Pool::new("sim", 1, 10).unwrap(), Aio::Off, Sim::new(1));
    let mut account = Account::new(JobClass::Fill, JobSource::NONE);
    let created = disk.create(&mut account, c"/a", &CreateOptions::NEW);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(created).unwrap()
}

fn fill() -> Arc<Fill> {
    Arc::new(Fill::new(Instant::now()))
}

fn push(fill: &Fill, count: u64) {
    for _ in 0..count {
        fill.push(Bytes::from(vec![7; PIECE as usize]));
    }
}

fn next(fill: &Arc<Fill>, id: usize, at: u64) -> Option<FollowerEvent> {
    match fill.poll_next(id, at, usize::MAX, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(next) => Some(next),
        Poll::Pending => None,
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn followers_are_woken_once_for_new_bytes() {
    let fill = fill();
    let woken = [(); 3].map(|()| Arc::new(Woken::default()));
    let ids = [(); 3].map(|()| fill.add_follower(0).unwrap());
    let poll = |nth: usize, at| {
        let waker = Waker::from(woken[nth].clone());
        fill.poll_next(ids[nth], at, usize::MAX, &mut Context::from_waker(&waker)).is_ready()
    };
    let counts = || woken.each_ref().map(|woken| woken.0.load(Relaxed));
    assert!(!poll(0, 0) && !poll(0, 0) && !poll(1, 0) && !poll(2, 0));
    fill.remove_follower(ids[2]);
    let rest = counts();
    assert_eq!(rest[2], 0, "who has left is not woken");
    assert!(!poll(0, 0) && !poll(1, 0));
    push(&fill, 1);
    assert_eq!([counts()[0] - rest[0], counts()[1] - rest[1], counts()[2]], [1, 1, 0]);
    // Who has not asked again does not wait.
    assert!(poll(0, 0) && !poll(0, PIECE));
    push(&fill, 1);
    assert_eq!([counts()[0] - rest[0], counts()[1] - rest[1]], [2, 1]);
}

#[test]
fn bytes_lost_by_the_disk_are_not_read() {
    let (fill, file) = (fill(), file());
    let id = fill.add_follower(0).unwrap();
    push(&fill, 16);
    fill.note_written(&file, 100, 16 * PIECE, 4 * PIECE);
    // Behind the window, everything that is written may be read.
    assert!(
        matches!(next(&fill, id, 0), Some(FollowerEvent::Read(PartialFile { head: 100, .. }, 0, len)) if len as u64 == 16 * PIECE)
    );
    assert!(fill.may_read(16 * PIECE));
    fill.stop_file(true);
    assert!(
        matches!(next(&fill, id, 0), Some(FollowerEvent::Read(PartialFile { head: 100, .. }, 0, len)) if len as u64 == 4 * PIECE)
    );
    assert!(matches!(next(&fill, id, 4 * PIECE), Some(FollowerEvent::End(BodyEnd::Broken))));
    assert!(fill.may_read(4 * PIECE) && !fill.may_read(4 * PIECE + 1));
    // What came last is still in memory.
    assert!(matches!(next(&fill, id, 12 * PIECE), Some(FollowerEvent::Piece(_))));
    // Who comes now would not get all of it, and asks himself.
    assert!(
        !fill.is_followable() && fill.add_follower(0).is_none() && fill.add_follower(13 * PIECE).is_some()
    );
}

#[test]
fn written_bytes_stay_readable_after_the_file_is_stopped() {
    let (fill, file) = (fill(), file());
    let id = fill.add_follower(0).unwrap();
    push(&fill, 16);
    fill.note_written(&file, 100, 16 * PIECE, 0);
    push(&fill, 2);
    fill.stop_file(false);
    assert!(
        matches!(next(&fill, id, 0), Some(FollowerEvent::Read(PartialFile { head: 100, .. }, 0, len)) if len as u64 == 16 * PIECE)
    );
    assert!(fill.is_followable());
    // Memory has the rest for as long as it is needed, and who comes then is too late.
    assert!(matches!(next(&fill, id, 16 * PIECE), Some(FollowerEvent::Piece(_))));
    assert!(!fill.is_followable() && fill.add_follower(0).is_none());
}

#[test]
fn pieces_behind_a_single_follower_are_needless() {
    let fill = fill();
    push(&fill, 4);
    assert_eq!(fill.needless(), 4 * PIECE, "nobody wants it");
    let id = fill.add_follower(0).unwrap();
    assert_eq!(fill.needless(), 0);
    assert!(next(&fill, id, 0).is_some());
    assert_eq!(fill.needless(), PIECE);
    fill.mark_shared();
    assert_eq!(fill.needless(), 0);
    fill.remove_follower(id);
    assert_eq!(fill.needless(), 0, "somebody else may ask, too");
}

#[test]
fn complete_fill_is_found_behind_its_replacement_until_stored() {
    let (first, second, third) = (fill(), fill(), fill());
    for fill in [&first, &second, &third] {
        fill.begin(FillHead { meta: meta(1, 1, 1), len: None });
    }
    second.set_earlier(first.clone());
    third.set_earlier(second.clone());
    // Two that begin at once.
    first.set_earlier(third.clone());
    let find = |fill: &Arc<Fill>| fill.youngest_whole();
    assert!(find(&third).is_none());
    first.end(BodyEnd::Whole, None);
    assert!(Arc::ptr_eq(&find(&third).unwrap(), &first));
    second.end(BodyEnd::Broken, None);
    assert!(Arc::ptr_eq(&find(&third).unwrap(), &first));
    assert!(Arc::ptr_eq(&third.earlier().unwrap(), &first));
    third.forget_earlier(&|meta| meta.key_text == "other");
    assert!(find(&third).is_some());
    first.mark_placed();
    assert!(find(&third).is_none() && third.earlier().is_none());
    third.end(BodyEnd::Whole, None);
    assert!(Arc::ptr_eq(&find(&third).unwrap(), &third));
}
