//! `js_periodic` of http: the functions of a configuration on one loop.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use tw_phases::synthetic_request;
use tw_request::client::Client;
use tw_request::event_loop::Loop;
use tw_request::generation::{PlanId, ServerId};
use tw_request::request::Request;
use tw_rt::TaskSet;
use tw_rt::watch::Subject;
use tw_server::http::BackgroundTask;

use crate::periodic::{self, Periodic};
use crate::set_of_plan::SetOfPlan;

/// Functions of one location.
pub(crate) struct LocationPeriodics(pub(crate) Box<[Periodic]>);

/// Location of a function.
#[derive(Clone, Copy)]
struct Place {
    server: ServerId,
    plan: PlanId,
}

/// Task of each loop that calls the functions of all locations.
pub(crate) fn task() -> BackgroundTask {
    BackgroundTask::on_every_loop(|event_loop| Box::pin(run(event_loop)))
}

async fn run(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let mut tasks = TaskSet::default();
    for (at, plan) in generation.plans.iter().enumerate() {
        let Some(periodics) = plan.parts.get::<LocationPeriodics>() else { continue };
        let is_own = |server: &tw_request::generation::Server| Arc::ptr_eq(&server.settings, &plan.server);
        let Some(server) = generation.servers.iter().position(is_own) else { continue };
        let place = Place { server: ServerId(server as u32), plan: PlanId(at as u32) };
        for (nth, periodic) in periodics.0.iter().enumerate() {
            if periodic.runs_on(event_loop.index) {
                let subject = Subject { kind: "js_periodic", id: nth as u64 };
                tasks.spawn((), subject, run_one(event_loop.clone(), place, periodic.clone()));
            }
        }
    }
    while let ((), Ok(())) = poll_fn(|cx| tasks.poll_ended(cx)).await {}
}

async fn run_one(event_loop: Rc<Loop>, place: Place, periodic: Periodic) {
    let begin = || {
        let event_loop = event_loop.clone();
        let name = periodic.function.clone();
        Box::pin(async move {
            let mut r = BackgroundRequest::new(event_loop, place);
            if let Some(scripts) = r.request().plan().parts.get::<SetOfPlan>() {
                periodic::call(r.request(), &scripts.function(&name)).await;
            }
        }) as _
    };
    let report = || {
        let mut r = BackgroundRequest::new(event_loop.clone(), place);
        periodic::report_overrun(r.request(), &periodic.function);
    };
    periodic.run(periodic::random(), begin, report).await;
}

/// Request that stands for nobody. Its memory goes back to the loop.
struct BackgroundRequest {
    event_loop: Rc<Loop>,
    /// `None` once it was given back.
    request: Option<Box<Request>>,
}

impl BackgroundRequest {
    fn new(event_loop: Rc<Loop>, place: Place) -> Self {
        let client = Client::for_background(event_loop.clone());
        let request = synthetic_request::request(&client, (place.server, place.plan), b"/");
        Self { event_loop, request: Some(request) }
    }

    fn request(&mut self) -> &mut Request {
        self.request.as_mut().expect("it is given back when this is dropped")
    }
}

impl Drop for BackgroundRequest {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.event_loop.give_back(request);
        }
    }
}
