//! The life of one stream: a request, from its head to its line in the log.

use std::rc::Rc;

use tw_http::Framing;
use tw_http2::FieldSection;

use super::input::Expects;
use super::request_head::BAD_REQUEST;
use super::stream_handle::Intent;
use super::{Input, StreamHandle, request_head};
use crate::http::connection_request::ConnectionRequest;
use crate::http::phases;
use crate::http::post_action;
use crate::http::request::Request;
use crate::http::request_body::{self, Source};
use crate::http::send_response;
use crate::http::start;
use crate::http::tls_requirements;
use crate::http::wire::Wire;

/// Answers a request.
pub(super) async fn answer(exchange: Rc<StreamHandle>, list: FieldSection) {
    let client = exchange.conn.client.clone();
    let home = &client.home;
    let mut served = ConnectionRequest::take(&home.app);
    let r = served.request();
    r.bind(&client, Wire::H2(exchange.clone()));
    r.begin();
    r.state.is_log_due = true;
    run(&exchange, r, list).await;
    exchange.end(r.costs.sent.complete, r.out.status);
    served.give_back(&home.app);
}

async fn run(exchange: &Rc<StreamHandle>, r: &mut Request, list: FieldSection) {
    let taken = request_head::take(r, &list);
    let wish = request_head::wish(&list);
    drop(list);
    if let Some(priority) = r.head.field("Priority") {
        exchange.share().ask(priority);
    }
    let body = match taken {
        Ok(()) => {
            match wish {
                Intent::Answer => begin_body(exchange, r),
                Intent::Other => exchange.set_wish(wish),
            }
            start::take_over(r);
            let admitted = match tls_requirements::check(r) {
                None => request_body::read_early(r).await,
                Some(status) => Err(status),
            };
            match admitted {
                Ok(()) => phases::run(r).await,
                Err(status) => phases::fail(r, status).await,
            }
        }
        Err(status) => {
            if status == BAD_REQUEST {
                exchange.set_malformed();
            }
            phases::fail(r, status).await
        }
    };
    send_response::send(r, body).await;
    if r.plan().core.post_action.is_some() && !r.uri.path.is_empty() {
        Box::pin(post_action::run(r)).await;
    }
    phases::log(r);
}

/// Begins the body that follows the head.
fn begin_body(exchange: &Rc<StreamHandle>, r: &mut Request) {
    let length = match r.head.framing() {
        Framing::None => return,
        Framing::Length(length) => Some(length),
        Framing::Chunked => None,
    };
    let expects = if r.head.expect_continue() { Expects::Hundred } else { Expects::Nothing };
    r.body.begin(Source::H2(Box::new(Input::new(exchange, length, expects))));
}
