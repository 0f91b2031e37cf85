//! The body of a response as it comes from an upstream server: pulled by whoever writes to the client.

use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_log::Level;
use tw_upstream::Outcome as End;

use super::codec::{Codec, Event};
use super::exchange::{Exchange, give_back, now_ms, read_some};
use super::fault::{Fault, Stage};
use super::link::Read;
use crate::http::body::{Pull, Told};
use crate::http::plan::LocalFuture;
use crate::http::request::Request;

/// A response that is still coming.
pub(super) struct Coming<C: Codec> {
    /// `None` once it is over.
    exchange: Option<Exchange<C>>,
    remaining: Option<u64>,
    read_timeout: Duration,
    /// Whether the client is to have at once what is there.
    flushes: bool,
}

impl<C: Codec> Coming<C> {
    pub(super) fn new(exchange: Exchange<C>, read_timeout: Duration, flushes: bool) -> Self {
        let remaining = exchange.codec.remaining();
        Self { exchange: Some(exchange), remaining, read_timeout, flushes }
    }

    async fn piece(&mut self, r: &mut Request) -> io::Result<Option<Bytes>> {
        let Some(exchange) = &mut self.exchange else { return Ok(None) };
        let next = next(exchange, r, self.read_timeout).await;
        match next {
            Ok(Some(piece)) => {
                self.remaining = self.remaining.map(|left| left.saturating_sub(piece.len() as u64));
                if let Some(attempt) = r.facts.upstream.current() {
                    attempt.length += piece.len() as u64;
                }
                // The last piece is the end: nobody may come back to see that.
                if self.remaining == Some(0)
                    && let Some(exchange) = self.exchange.take()
                {
                    finish(exchange, r);
                }
                Ok(Some(piece))
            }
            Ok(None) => {
                if let Some(exchange) = self.exchange.take() {
                    finish(exchange, r);
                }
                Ok(None)
            }
            Err(fault) => {
                r.log(Level::Error, format_args!("{}", fault.line(Stage::ReadingBody)));
                if let Some(exchange) = self.exchange.take() {
                    note(&exchange, r);
                    give_back(r, exchange.sending);
                    let _ = exchange.lease.done(End::Failed, now_ms());
                }
                Err(io::Error::other(Told))
            }
        }
    }
}

impl<C: Codec> Pull for Coming<C> {
    fn next<'a>(&'a mut self, _: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(r))
    }

    fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    fn flushes(&self) -> bool {
        self.flushes
    }
}

/// A body of which only the length is known: the response to `HEAD`.
pub(super) struct Announced(pub(super) u64);

impl Pull for Announced {
    fn next<'a>(&'a mut self, _: usize, _: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        self.0 = 0;
        Box::pin(async { Ok(None) })
    }

    fn remaining(&self) -> Option<u64> {
        Some(self.0)
    }
}

/// The next piece; `None` at the end.
pub(super) async fn next<C: Codec>(
    exchange: &mut Exchange<C>,
    r: &mut Request,
    timeout: Duration,
) -> Result<Option<Bytes>, Fault> {
    let home = r.client().home.clone();
    let Exchange { link, codec, input, sending, .. } = exchange;
    link.begin_reading(timeout);
    poll_fn(|cx| {
        // What is left of the request goes on; should that fail, the response tells more than the failure.
        let _ = sending.poll(cx);
        loop {
            match codec.read(input, &mut r.facts.upstream.answer)? {
                Event::Body(piece) => return Poll::Ready(Ok(Some(piece))),
                Event::End => return Poll::Ready(Ok(None)),
                Event::NeedMore | Event::Interim | Event::Head => {}
            }
            let (read, came) = read_some(&home, link)?;
            match read {
                Read::Some => *input = came,
                Read::Nothing => ready!(link.poll_readable(cx))?,
                Read::Closed => return Poll::Ready(codec.closed().map(|()| None)),
            }
        }
    })
    .await
}

/// What is at hand of the body, if it is all of it.
pub(super) fn at_once<C: Codec>(exchange: &mut Exchange<C>, r: &mut Request) -> Result<Option<Bytes>, Fault> {
    let len = exchange.codec.remaining();
    match len {
        Some(0) => Ok(Some(Bytes::new())),
        Some(len) if len == exchange.input.len() as u64 => {
            match exchange.codec.read(&mut exchange.input, &mut r.facts.upstream.answer)? {
                Event::Body(piece) => Ok(Some(piece)),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

pub(super) fn note<C>(exchange: &Exchange<C>, r: &mut Request) {
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.end();
        (attempt.sent, attempt.received) = (exchange.link.sent.get(), exchange.link.received.get());
    }
    exchange.lease.sent(exchange.link.sent.get());
    exchange.lease.received(exchange.link.received.get());
}

/// Ends an exchange whose response is complete: its connection may serve the next one.
pub(super) fn finish<C: Codec>(exchange: Exchange<C>, r: &mut Request) {
    note(&exchange, r);
    let home = r.client().home.clone();
    let Exchange { link, lease, codec, input, sending, owner, keepalive } = exchange;
    lease.status(r.facts.upstream.answer.status);
    let peer = lease.peer().id();
    let _ = lease.done(End::Success, now_ms());
    let is_sent = sending.is_done();
    give_back(r, sending);
    if !input.is_empty() {
        r.log(Level::Warn, format_args!("upstream sent more data than the response has while reading upstream"));
    } else if is_sent && codec.keeps_alive() {
        link.requests.set(link.requests.get() + 1);
        home.app.idle.put(&home, &owner, peer, link, &keepalive);
    }
}
