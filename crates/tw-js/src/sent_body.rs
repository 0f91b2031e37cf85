//! Body of a response that a function sends piece by piece (`r.send()`).
//!
//! ```text
//! callback of the script: r.send() … r.variables … r.send(), return ─► Handled ─► pieces leave, one by one
//! ```
//! A script asks for variables while its process waits, and the loop answers only while it has the request, which is not the case while the
//! client takes a piece. So no piece leaves before the callback that has made it has returned: a client that reads slowly does not hold a
//! process that others use, too.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tw_log::Level;
use tw_request::body::{AlreadyLogged, Pull};
use tw_request::plan::LocalFuture;
use tw_request::request::Request;
use tw_rt::Deadline;
use tw_script::Effect;

use crate::request_call::{Failed, Progress, RequestCall};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes that one callback of a script sends before the client has taken any of them.
    const BUFFERED_MAX: usize = 16 << 20, bytes, "the first ones leave before the callback has returned";
    /// Time that a script waits for a variable or a file while its client takes nothing.
    const CLIENT_WAIT_MAX: Duration = Duration::from_millis(100), time, "the script gets an exception";
}

/// Body of a response that a function sends piece by piece.
pub(crate) struct SentBody {
    call: RequestCall,
    pieces: VecDeque<Bytes>,
    buffered_size: usize,
    /// Bytes that the head has announced and that have not been sent.
    announced: Option<u64>,
    progress: SendProgress,
    is_finished: bool,
    /// End of the wait for the client, once the process waits for an answer.
    patience: Option<Deadline>,
}

/// State of the function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendProgress {
    /// A callback that has sent something has not returned yet.
    InCallback,
    /// The callbacks that have sent something have returned.
    Returned,
    /// The call has ended.
    Over,
    /// The call has failed, which was logged.
    Failed,
}

impl SentBody {
    /// Body of the response of a call that has sent the head.
    pub(crate) fn new(call: RequestCall, announced: Option<u64>) -> Self {
        Self {
            call,
            pieces: VecDeque::new(),
            buffered_size: 0,
            announced,
            progress: SendProgress::InCallback,
            is_finished: false,
            patience: None,
        }
    }

    async fn piece(&mut self, r: &mut Request) -> Result<Option<Bytes>, Failed> {
        self.patience = None;
        while self.is_incomplete() {
            self.step(r).await;
        }
        if let Some(piece) = self.pieces.pop_front() {
            self.buffered_size -= piece.len();
            return self.count(r, piece).map(Some);
        }
        if self.progress == SendProgress::Failed {
            return Err(Failed { status: 500 });
        }
        if !self.is_finished {
            r.log(Level::Error, format_args!("js: the response was not finished by r.finish()"));
            return Err(Failed { status: 500 });
        }
        match self.announced {
            None | Some(0) => Ok(None),
            Some(missing) => {
                r.log(
                    Level::Error,
                    format_args!("js: the response is {missing} bytes shorter than its Content-Length"),
                );
                Err(Failed { status: 500 })
            }
        }
    }

    /// Returns true if the script has to say more before the next piece leaves.
    fn is_incomplete(&self) -> bool {
        match self.progress {
            SendProgress::InCallback => self.buffered_size < BUFFERED_MAX,
            SendProgress::Returned => self.pieces.is_empty(),
            SendProgress::Over | SendProgress::Failed => false,
        }
    }

    async fn step(&mut self, r: &mut Request) {
        match self.call.next(r).await {
            Ok(Progress::Effect(Effect::Send { data })) => {
                self.progress = SendProgress::InCallback;
                if !self.is_finished && !data.is_empty() {
                    self.buffered_size += data.len();
                    self.pieces.push_back(data.into_vec().into());
                }
            }
            Ok(Progress::Effect(Effect::Finish)) => self.is_finished = true,
            Ok(Progress::Handled) => self.progress = SendProgress::Returned,
            Ok(Progress::Effect(_)) => {}
            Ok(Progress::Done(_)) => self.progress = SendProgress::Over,
            Err(_) => self.progress = SendProgress::Failed,
        }
    }

    /// A piece, within the announced length.
    fn count(&mut self, r: &Request, piece: Bytes) -> Result<Bytes, Failed> {
        if let Some(announced) = &mut self.announced {
            let Some(rest) = announced.checked_sub(piece.len() as u64) else {
                self.progress = SendProgress::Failed;
                self.pieces.clear();
                r.log(Level::Error, format_args!("js: the response is longer than its Content-Length"));
                return Err(Failed { status: 500 });
            };
            *announced = rest;
        }
        Ok(piece)
    }
}

impl Pull for SentBody {
    fn next<'a>(&'a mut self, _: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(async move { self.piece(r).await.map_err(|_| io::Error::other(AlreadyLogged)) })
    }

    fn remaining(&self) -> Option<u64> {
        let is_empty = self.progress == SendProgress::Over && self.pieces.is_empty();
        if is_empty && self.is_finished { Some(0) } else { self.announced }
    }

    /// A callback of a timer may ask for something while the client takes a piece.
    fn run_ahead(&mut self, cx: &mut Context<'_>) {
        if !self.call.poll_waiting(cx) {
            return;
        }
        let patience = self.patience.get_or_insert_with(|| {
            let mut deadline = Deadline::new();
            deadline.set(CLIENT_WAIT_MAX);
            deadline
        });
        if let Poll::Ready(()) = patience.poll_elapsed(cx) {
            self.patience = None;
            self.call.refuse_waiting("the client does not take the response");
        }
    }

    fn flushes(&self) -> bool {
        true
    }
}
