//! State of all protocols on one loop.

use std::rc::Rc;
use std::time::Duration;

use tw_core::event_loop::{AcceptedConnection, Application, LoopCore};
use tw_server::event_loop::Loop as HttpLoop;

use crate::generation::Generation;

/// State of all protocols on one loop.
pub struct App {
    http: Rc<HttpLoop>,
}

impl Application for App {
    type Generation = Generation;

    fn new(core: Rc<LoopCore>, generation: Generation) -> Rc<Self> {
        Rc::new(Self { http: HttpLoop::new(core, generation.http) })
    }

    fn set_generation(&self, generation: Generation) {
        self.http.set_generation(generation.http);
    }

    fn serve(self: Rc<Self>, connection: AcceptedConnection) -> impl Future<Output = ()> + 'static {
        self.http.clone().serve(connection)
    }

    fn run_background_tasks(self: Rc<Self>) -> impl Future<Output = ()> + 'static {
        self.http.clone().run_background_tasks()
    }

    fn sweep(&self) -> Duration {
        self.http.sweep()
    }

    fn close_files(&self) {
        self.http.close_files();
    }
}
