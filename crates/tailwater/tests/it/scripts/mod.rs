//! Scripts: module `js`, with the program `tailwater-scripts`, which has to be built.

mod configuration;
mod content;
mod dictionaries;
mod fetch;
mod files;
mod filters;
mod overruns;
mod periodic;
mod processes;
mod recipes;
mod stream;
mod subrequests;
mod variables;

use std::path::Path;

use tw_testkit::server::Builder;
use tw_testkit::{Lacks, Server, leave_out};

use crate::support::{server, start};

/// A server whose script is `main.js`, if the program for scripts was built.
fn scripted(script: &str) -> Option<Builder> {
    let program = Path::new(env!("CARGO_BIN_EXE_tailwater")).with_file_name("tailwater-scripts");
    if !program.exists() {
        leave_out(Lacks::Machine, format_args!("no {}: cargo build -p tailwater-scripts", program.display()));
        return None;
    }
    Some(server().with_master().file("conf/main.js", script))
}

/// Starts such a server with `main.js` imported in front of its locations. One loop, so that everything is in one script process.
fn start_scripted(script: &str, locations: &str) -> Option<Server> {
    let conf = format!(
        "js_import main.js; \
         server {{ listen 127.0.0.1:{{port}}; root html; error_log logs/error.log info; {locations} }}"
    );
    Some(start(scripted(script)?, &conf))
}
