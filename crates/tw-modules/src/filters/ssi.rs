//! `ssi`: commands in pages, server side includes (nginx: ngx_http_ssi_filter_module). Header filter.
//!
//! `parser` finds commands, `words` evaluates the texts in them, `commands` lists them, `page` runs them, and
//! `shared` is the state that the pages of one request share.

mod commands;
mod page;
mod parser;
mod queue;
mod shared;
mod words;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{
    Args, ConfError, Directive, HTTP, IF_IN_LOCATION, IneffectiveDirectives, LOCATION, SERVER, Setting,
    record,
};
use tw_core::module::Settings;
use tw_core::regex::{Caseless, Regex};
use tw_module_support::changed_body::{Validators, refuse_ranges, remove_length};
use tw_module_support::date_format::{self, DateZone};
use tw_module_support::types::{self, RawTypes, Types};
use tw_phases::early_subrequest::SubrequestTurn;
use tw_request::body::Body;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

use self::page::SsiPage;
use self::shared::SsiState;

const ALL: u32 = HTTP | SERVER | LOCATION;
const TYPES: &[&str] = &["text/html"];
/// `ssi_value_length` by default, in bytes.
const VALUE_LEN: u64 = 255;
/// Largest `ssi_value_length`: one command is held in memory.
const VALUE_LEN_MAX: u64 = 1 << 20;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    enabled: Setting<bool>,
    silent_errors: Setting<bool>,
    last_modified: Setting<bool>,
    value_length: Setting<u64>,
    without_effect: IneffectiveDirectives,
    types: RawTypes,
}

/// Settings of one location.
#[derive(Clone)]
pub(crate) struct Ssi {
    enabled: bool,
    errors: Errors,
    validators: Validators,
    /// Longest value of a parameter, in bytes.
    value_len_max: usize,
    types: Types,
}

/// `ssi_silent_errors`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Errors {
    /// The page shows an error text.
    Shown,
    /// Only the log has it.
    Silent,
}

/// The format of dates on a page.
struct TimeFormat(RefCell<Vec<u8>>);

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// A value of a parameter of a command of SSI.
    directive "ssi_value_length", "the command fails, and a line in the error log";
    /// The name of a command of SSI.
    constant bytes parser::COMMAND_LEN_MAX, "the command fails, and a line in the error log";
    /// The name of a parameter of a command of SSI.
    constant bytes parser::PARAMETER_LEN_MAX, "the command fails, and a line in the error log";
    /// Parameters of a command of SSI.
    constant count parser::PARAMETERS_MAX, "the command fails, and a line in the error log";
    /// Texts and includes of a page that wait to be sent.
    constant bytes queue::QUEUE_MAX, "the page is read on when they are sent";
    /// A date in the format of a page.
    constant bytes date_format::DATE_MAX, "the variable is missing";
    /// A value that variables make in a command of SSI.
    constant bytes words::SSI_TEXT_MAX, "the command fails, and a line in the error log";
    /// Variables and blocks of SSI that a request keeps.
    constant bytes shared::SSI_KEPT_MAX, "the command fails, and a line in the error log";
}

impl Settings<Http> for Ssi {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("ssi", ALL | IF_IN_LOCATION)
            .default("off")
            .doc("Runs the commands in a page: server side includes.")
            .set(|raw, node, _| raw.enabled.set_flag(node)),
        record::flag("ssi_silent_errors", ALL)
            .default("off")
            .doc("Leaves errors out of the page.")
            .set(|raw, node, _| raw.silent_errors.set_flag(node)),
        record::flag("ssi_last_modified", ALL)
            .default("off")
            .since("1.5.1")
            .doc("Keeps Last-Modified.")
            .set(|raw, node, _| raw.last_modified.set_flag(node)),
        record::size("ssi_value_length", ALL)
            .default("256")
            .doc("Longest value of a parameter of a command, in bytes.")
            .set(|raw, node, _| {
                raw.value_length.set_size(node)?;
                match raw.value_length.get() {
                    Some(length) if *length > VALUE_LEN_MAX => {
                        Err(node.error(&format!("value must be at most {VALUE_LEN_MAX}")))
                    }
                    _ => Ok(()),
                }
            }),
        // DIFF(nginx): a page is read into memory to find its commands; no part of it is sent from its file.
        record::size("ssi_min_file_chunk", ALL)
            .default("1k")
            .doc("Smallest part of a page that is sent from its file; without effect.")
            .set(|raw, node, _| {
                node.size()?;
                raw.without_effect.set_once(node)
            }),
        record::flag("ssi_ignore_recycled_buffers", ALL)
            .default("off")
            .doc("Accepted and without effect: parts of a page always reach the client at once.")
            .set(|raw, node, _| {
                node.flag()?;
                raw.without_effect.set_once(node)
            }),
        record::new("ssi_types", "mime-type …", ALL, Args::at_least(1))
            .default("text/html")
            .doc("Media types besides text/html of pages with commands; `*` is any.")
            .set(|raw, node, cx| {
                types::add(&mut raw.types, node, TYPES, cx);
                Ok(())
            }),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "date_local",
            |r, out| put_date(r, DateZone::Local, out),
            "Local time, in the format of the page.",
        ),
        VarDef::one(
            "date_gmt",
            |r, out| put_date(r, DateZone::Gmt, out),
            "Time in GMT, in the format of the page.",
        ),
    ];

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let silent = outer.map(|o| o.errors == Errors::Silent);
        let keep = outer.map(|o| o.validators == Validators::Keep);
        let enabled = raw.enabled.or(outer.map(|o| o.enabled), false);
        if enabled {
            // Expressions are compiled while pages are sent. The first one of the process asks the system how many
            // processors there are, which opens a file: no loop may do that.
            Regex::new(b"a|(b)", Caseless::No).map_err(ConfError::new)?;
        }
        let length = raw.value_length.or(outer.map(|o| o.value_len_max as u64), VALUE_LEN);
        Ok(Self {
            enabled,
            errors: if raw.silent_errors.or(silent, false) { Errors::Silent } else { Errors::Shown },
            validators: Validators::of(raw.last_modified.or(keep, false)),
            value_len_max: length as usize,
            types: Types::resolve(raw.types, outer.map(|o| &o.types), TYPES),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.enabled {
            plan.add_header_filter(Filter(self.clone()));
        }
    }
}

fn put_date(r: &Request, place: DateZone, out: &mut Vec<u8>) -> Value {
    let now = tw_rt::clock::unix().secs;
    let is_found = match r.extensions.get::<TimeFormat>() {
        Some(format) => date_format::push(&format.0.borrow(), now, place, out),
        None => date_format::push(date_format::DEFAULT, now, place, out),
    };
    if is_found { Value::Found } else { Value::Missing }
}

/// Lets the pages among the parts of `r` know of each other's variables and blocks.
pub(crate) fn share(r: &mut Request) {
    shared(r);
}

fn shared(r: &mut Request) -> Rc<SsiState> {
    r.extensions.get::<SsiState>().unwrap_or_else(|| {
        let shared = Rc::new(SsiState::default());
        r.extensions.put(shared.clone());
        shared
    })
}

/// The settings as a filter, which gives them to its pages.
struct Filter(Arc<Ssi>);

impl HeaderFilter for Filter {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if body.is_empty() || !self.0.types.contain(&r.response) {
            return body;
        }
        let shared = shared(r);
        r.extensions.put(Rc::new(TimeFormat(RefCell::new(date_format::DEFAULT.to_vec()))));
        if !r.is_subrequest() {
            remove_length(r);
            refuse_ranges(r);
            self.0.validators.apply(&mut r.response);
        }
        Body::Pull(Box::new(SsiPage::new(self.0.clone(), shared, SubrequestTurn::of(r), body)))
    }
}
