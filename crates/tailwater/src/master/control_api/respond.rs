//! Responses of the master to requests of the control API.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::process::getpid;
use serde_json::{Value, json};
use tw_core::event_loop::Reloads;
use tw_http::Method;

use super::connection::{ApiRequest, ApiResponse, logs};
use super::endpoint::{self, Endpoint};
use crate::master::Master;
use crate::master::control::Client;
use crate::master::signals::State;

impl Master {
    /// Serves the clients of the control API as far as they are ready.
    pub(in crate::master) fn serve_control_api(&mut self, state: State) {
        let is_replaced = self.binaries.new_one().is_some();
        let Some(api) = &mut self.control_api else { return };
        for (number, request) in api.advance(is_replaced, Instant::now()) {
            self.answer(number, &request, state);
        }
        // Most responses can be written at once.
        if let Some(api) = &mut self.control_api {
            let late = api.advance(true, Instant::now());
            for (number, request) in late {
                self.answer(number, &request, state);
            }
        }
    }

    fn answer(&mut self, number: u64, request: &ApiRequest, state: State) {
        let response = match Endpoint::of(&request.path) {
            None => ApiResponse::error(404, "no such path"),
            Some(endpoint) if !endpoint.has(request.method) => {
                ApiResponse::error(405, "not a method of this path")
            }
            Some(Endpoint::Config) if request.method == Method::Patch => self.reload_for_api(state),
            Some(Endpoint::Purge(cache)) => match endpoint::purge(&cache, &request.body) {
                Err(text) => ApiResponse::error(400, &text),
                Ok(order) => match UnixStream::pair() {
                    Err(error) => ApiResponse::from(error),
                    Ok((ours, theirs)) => {
                        self.notice(format_args!("purge in cache \"{cache}\" ordered by the control API"));
                        if let Some(api) = &mut self.control_api {
                            api.wait_for(number, ours);
                        }
                        return self.serving.purge(Client::new(theirs, getpid()), order);
                    }
                },
            },
            Some(Endpoint::Metrics) => match self.pass_on(number) {
                Ok(()) => return,
                Err(error) => ApiResponse::error(503, &error.to_string()),
            },
            Some(endpoint) => ApiResponse::ok(self.show(&endpoint, state)),
        };
        if let Some(api) = &mut self.control_api {
            api.respond(number, &response);
        }
    }

    /// Passes the connection of this number on to the process that has the metrics.
    fn pass_on(&mut self, number: u64) -> io::Result<()> {
        let Some(api) = &mut self.control_api else { return Ok(()) };
        if let Some(connection) = api.connection(number) {
            self.serving.send_metrics(connection.stream())?;
        }
        api.leave_to_another(number);
        Ok(())
    }

    /// Reloads, as `-s reload` does.
    fn reload_for_api(&mut self, state: State) -> ApiResponse {
        if let Some(text) = self.reason_not_to_reload(state) {
            return ApiResponse { status: 422, body: logs([(tw_log::Level::Emerg, text)].into_iter()) };
        }
        self.notice(format_args!("reload ordered by the control API, reconfiguring"));
        let (is_done, said) = self.reload();
        let status = if is_done { 200 } else { 422 };
        ApiResponse { status, body: logs(said.iter().map(|fault| (fault.level, &*fault.message))) }
    }

    fn show(&self, endpoint: &Endpoint, state: State) -> Value {
        match endpoint {
            Endpoint::List(names) => json!(names),
            Endpoint::Nginx => {
                json!({ "version": tw_core::NGINX_VERSION, "build": concat!("tailwater/", env!("CARGO_PKG_VERSION")) })
            }
            Endpoint::Processes => {
                let all = self.serving.processes().into_iter();
                let shown = all.map(|(pid, is_leaving)| {
                    json!({ "name": "worker process", "pid": pid.as_raw_nonzero(), "exiting": is_leaving })
                });
                shown.collect()
            }
            Endpoint::Config => {
                let files = self.control_api.iter().flat_map(|api| api.files());
                files.map(|(name, text)| json!({ "name": name, "content": text })).collect()
            }
            Endpoint::Status => self.status(state),
            Endpoint::Messages => {
                let newest = self.console.recent().into_iter();
                let shown = newest.map(|message| {
                    json!({
                        "time": message.time,
                        "level": message.fault.level.to_string(),
                        "message": message.fault.message,
                        "hint": message.fault.hint,
                    })
                });
                shown.collect()
            }
            Endpoint::Purge(_) | Endpoint::Metrics => Value::Null,
        }
    }

    fn status(&self, state: State) -> Value {
        let Reloads { succeeded, failed, has_last_failed, last_success } = self.reloads;
        let word = match (state, self.binaries.new_one()) {
            (State::Serving, None) => "serving",
            (State::Serving, Some(_)) => "replaced",
            (State::Draining | State::Ended, _) => "shutting down",
        };
        json!({
            "pid": getpid().as_raw_nonzero(),
            "state": word,
            "started": self.started,
            "addresses": self.addresses().map(ToString::to_string).collect::<Vec<_>>(),
            "new_binary": self.binaries.new_one().map(|pid| pid.as_raw_nonzero()),
            "reloads": {
                "succeeded": succeeded,
                "failed": failed,
                "last_failed": has_last_failed,
                "last_success": (last_success > 0).then_some(last_success),
            },
        })
    }
}
