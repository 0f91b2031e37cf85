//! Operations of scripts: what the server answers for a request.

mod answer;
pub(crate) mod dictionary;
pub(crate) mod fetch;
pub(crate) mod fetch_proxy;
pub(crate) mod fetch_url;
pub(crate) mod file;
pub(crate) mod request_body;
pub(crate) mod subrequest;
pub(crate) mod variable;

pub(crate) use answer::Answer;
