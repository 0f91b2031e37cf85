//! The life of one stream: a request, from its head to its line in the log.

use std::rc::Rc;

use ::h2::RecvStream;
use ::h2::ext::Protocol;
use http::Request as Asked;
use tw_http::{Content, Framing};

use super::{Exchange, Input, head};
use crate::http::entry;
use crate::http::greet;
use crate::http::phases;
use crate::http::post_action;
use crate::http::request::Request;
use crate::http::request_body::{self, Source};
use crate::http::respond;
use crate::http::wire::Wire;

/// Answers a request.
pub(super) async fn answer(exchange: Rc<Exchange>, asked: Asked<RecvStream>) {
    let client = exchange.conn.client.clone();
    let home = &client.home;
    let mut r = home.app.take_request();
    r.bind(&client, Wire::H2(exchange.clone()));
    r.begin();
    run(&exchange, &mut r, asked).await;
    exchange.end(r.costs.sent.complete, r.out.status);
    home.app.give_back(r);
}

async fn run(exchange: &Rc<Exchange>, r: &mut Request, asked: Asked<RecvStream>) {
    let (parts, stream) = asked.into_parts();
    let content = if stream.is_end_stream() { Content::None } else { Content::Follows };
    let taken = head::take(r, &parts, content);
    let asks_for_other = parts.extensions.get::<Protocol>().is_some();
    drop(parts);
    if let Some(priority) = r.head.field("Priority") {
        exchange.share().ask(priority);
    }
    exchange.conn.count_worth(r.head.read_len());
    let body = match taken {
        Ok(()) => {
            if asks_for_other {
                exchange.keep_other(stream);
            } else {
                begin_body(exchange, r, stream);
            }
            entry::take_over(r);
            let admitted = match greet::refusal(r) {
                None => request_body::read_early(r).await,
                Some(status) => Err(status),
            };
            match admitted {
                Ok(()) => phases::run(r).await,
                Err(status) => phases::fail(r, status).await,
            }
        }
        Err(status) => phases::fail(r, status).await,
    };
    respond::send(r, body).await;
    if r.plan().core.post_action.is_some() && !r.uri.path.is_empty() {
        Box::pin(post_action::run(r)).await;
    }
    phases::log(r);
}

/// Begins the body that follows the head.
fn begin_body(exchange: &Rc<Exchange>, r: &mut Request, stream: RecvStream) {
    let length = match r.head.framing() {
        Framing::None | Framing::Length(0) => return,
        Framing::Length(length) => Some(length),
        Framing::Chunked => None,
    };
    let input = Input::new(exchange, stream, length, r.head.expect_continue());
    r.body.begin(Source::H2(Box::new(input)));
}
