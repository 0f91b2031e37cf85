//! The epoll descriptor of a loop that does not say which it is.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use libc::{EPOLL_CTL_MOD, epoll_event};

/// The epoll descriptor of this process in which `watched` is registered, as a descriptor of its own; `None` if there is
/// none, or only with a number that the process may not open any more.
///
/// From then on no events are reported of `watched`. It must be registered nowhere else, and not exclusively. Asks the
/// kernel about each number from 0 on, some 100 ns each.
pub fn find_by(watched: impl AsFd) -> Option<OwnedFd> {
    let watched = watched.as_fd().as_raw_fd();
    let highest = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let highest = highest.and_then(|n| RawFd::try_from(n).ok()).unwrap_or(RawFd::MAX);
    let value = (0..highest).find(|number| is_registered(*number, watched).is_ok())?;
    // SAFETY: the call takes no pointers. The number belongs to an epoll descriptor.
    let own = unsafe { libc::fcntl(value, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    (own >= 0).then(|| unsafe { std::os::fd::FromRawFd::from_raw_fd(own) })
}

/// Changes the registration of `watched` in `epoll` to no events, if there is one. Anything else fails without effect.
fn is_registered(epoll: RawFd, watched: RawFd) -> io::Result<()> {
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: the pointer is to a valid event, which the kernel only reads. A number that is no epoll descriptor is refused.
    let rc = unsafe { libc::epoll_ctl(epoll, EPOLL_CTL_MOD, watched, &mut event) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn the_epoll_that_watches_is_found_among_others() {
        let [other, wanted_value] = [(); 2].map(|()| epoll::create(CreateFlags::CLOEXEC).unwrap());
        let [watched, marker] = [0, 1].map(|n| eventfd(n, EventfdFlags::CLOEXEC).unwrap());
        assert!(find_by(&watched).is_none());
        epoll::add(&other, &marker, EventData::new_u64(1), EventFlags::IN).unwrap();
        epoll::add(&wanted_value, &watched, EventData::new_u64(2), EventFlags::IN).unwrap();
        let owned_fd = find_by(&watched).unwrap();
        epoll::add(&owned_fd, &marker, EventData::new_u64(3), EventFlags::IN).unwrap();
        let mut events = Vec::with_capacity(4);
        epoll::wait(&wanted_value, rustix::buffer::spare_capacity(&mut events), None).unwrap();
        assert_eq!(events.iter().map(|event| event.data.u64()).collect::<Vec<_>>(), [3]);
    }
}
