//! Follower of a fill: body of a response that is read while it is received.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tw_disk::Disk;
use tw_log::Level;

use super::continuation::continue_fill;
use super::{BodyEnd, Fill, FollowerEvent, PartialFile};
use tw_request::body::{AlreadyLogged, Pull};
use tw_request::files;
use tw_request::plan::LocalFuture;
use tw_request::request::Request;

/// Body of a response that is read from a fill while that is being received.
pub(crate) struct Follower {
    fill: Arc<Fill>,
    id: usize,
    at: u64,
    /// End of the wanted range, if known.
    end: Option<u64>,
    disk: Disk,
    /// True if the byte counts of the exchange go to the request.
    reports: bool,
}

impl Follower {
    /// Creates a follower of the bytes from `from` on, until `end` if that is known. Returns `None` if those bytes are gone:
    /// the file takes no more, and no other follower was so far behind.
    pub(crate) fn new(fill: Arc<Fill>, from: u64, end: Option<u64>, disk: Disk) -> Option<Self> {
        let id = fill.add_follower(from)?;
        Some(Self { fill, id, at: from, end, disk, reports: false })
    }

    /// Makes the follower write the byte counts of the exchange to the request, which began the fill.
    #[must_use]
    pub(crate) fn reporting(mut self) -> Self {
        self.reports = true;
        self
    }

    /// Writes the byte counts of the exchange to the request, once.
    fn report(&mut self, r: &mut Request) {
        if !self.reports {
            return;
        }
        let Some(report) = self.fill.state.lock().report else { return };
        self.reports = false;
        if let Some(attempt) = r.upstream.current() {
            attempt.length = report.length;
            (attempt.sent, attempt.received, attempt.ended) = (report.sent, report.received, report.took);
        }
    }

    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let remaining = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.at));
        let want = want.min(usize::try_from(remaining).unwrap_or(usize::MAX));
        if want == 0 {
            self.report(r);
            return Ok(None);
        }
        let next = loop {
            match poll_fn(|cx| self.fill.poll_next(self.id, self.at, want, cx)).await {
                // DIFF(nginx): one range request continues it for all. If that fails, the fill reports its end.
                FollowerEvent::Continue(continuation) => continue_fill(r, continuation),
                next => break next,
            }
        };
        let piece = match next {
            FollowerEvent::Continue(_) => return Err(io::Error::other(AlreadyLogged)),
            FollowerEvent::Piece(piece) => piece,
            FollowerEvent::Read(PartialFile { file, head, check: Some(check) }, at, len) => {
                let piece = files::read_verified(r, &self.disk, &check, &file, head + at, len).await?;
                if piece.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                piece
            }
            FollowerEvent::Read(PartialFile { file, head, check: None }, at, len) => {
                let offset = head + at;
                let read = self.disk.read(&mut r.costs.account, &file, offset, vec![0; len]).await;
                match read {
                    // The bytes were lost while they were read.
                    Ok(_) if !self.fill.may_read(self.at + len as u64) => {
                        return Err(io::Error::other(AlreadyLogged));
                    }
                    Ok(data) if !data.is_empty() => data.into(),
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => {
                        r.log(
                            Level::Crit,
                            format_args!("{error} while reading a response that is being cached"),
                        );
                        return Err(io::Error::other(AlreadyLogged));
                    }
                }
            }
            FollowerEvent::End(ended) => {
                self.report(r);
                return match ended {
                    BodyEnd::Whole => Ok(None),
                    // The writer has logged the reason.
                    BodyEnd::Broken => Err(io::Error::other(AlreadyLogged)),
                };
            }
        };
        self.at += piece.len() as u64;
        self.report(r);
        Ok(Some(piece))
    }
}

impl Pull for Follower {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        self.end.map(|end| end - self.at)
    }

    fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
        let end = self.end?;
        let from = self.at.saturating_add(start).min(end);
        let to = from.saturating_add(len).min(end);
        Some(Box::new(Self::new(self.fill.clone(), from, Some(to), self.disk.clone())?))
    }

    fn flushes(&self) -> bool {
        // Followers get each piece as it is received.
        true
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.fill.remove_follower(self.id);
    }
}
