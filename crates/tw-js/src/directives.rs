//! Records of the directives of scripts, the same in every protocol.

use tw_conf::{
    Args, Directive, HTTP, IF_IN_LOCATION, LIMIT_EXCEPT, LOCATION, SERVER, STREAM, STREAM_SERVER, record,
};

use crate::periodic::RawPeriodic;
use crate::raw::{Raw, RawBodyFilter, RawDictionary, RawFilePath, RawImport, RawSet, RawVar};

/// Blocks of settings that inner blocks inherit.
const ALL: u32 = HTTP | SERVER | LOCATION | STREAM | STREAM_SERVER;
/// Blocks of http whose requests a function sees.
const REQUESTS: u32 = LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT;
/// Blocks of stream whose sessions a function sees.
const SESSIONS: u32 = STREAM | STREAM_SERVER;
/// Largest number of script processes.
const PROCESSES_MAX: u64 = 256;

/// Records of all directives.
pub(crate) const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("js_import", "module.js | name from module.js", ALL, Args::exact(1).or(3))
        .since("0.4.0 of njs")
        .doc("Imports a module of scripts, whose functions other directives call as name.function.")
        .set(|raw, node, _| {
            raw.imports.push(RawImport::read(node)?);
            Ok(())
        }),
    record::new("js_path", "path", ALL, Args::exact(1))
        .since("0.3.0 of njs")
        .doc("A directory in which modules are looked for; behind that of the importing file and that of the configuration.")
        .set(|raw, node, _| {
            raw.paths.push(node.arg(0)?.clone());
            Ok(())
        }),
    record::new("js_fs_path", "directory [write]", ALL, Args::range(1, 2))
        .since("Tailwater 0.2")
        .doc("A directory whose files scripts may read by the module fs; with write, change, too. Without this directive they may use no file.")
        .set(|raw, node, _| {
            let is_writable = match node.args.get(1) {
                None => false,
                Some(word) if word.is("write") => true,
                Some(word) => return Err(node.invalid_parameter(word)),
            };
            raw.file_paths.push(RawFilePath { path: node.arg(0)?.clone(), is_writable });
            Ok(())
        }),
    record::new("js_engine", "qjs | njs", ALL, Args::exact(1))
        .default("qjs")
        .since("0.8.6 of njs")
        .doc("The engine of scripts is QuickJS, whichever word stands here.")
        .set(|raw, node, _| {
            match &*node.arg(0)?.bytes {
                b"qjs" => {}
                b"njs" => raw.old_engine = Some(node.span),
                _ => return Err(node.invalid_value(node.arg(0)?)),
            }
            raw.engine.set_once(node, ())
        }),
    record::number("js_context_reuse", ALL)
        .default("128")
        .since("0.8.6 of njs")
        .doc("Contexts of scripts that a script process keeps for further requests; 0 makes a new one for each request.")
        .set(|raw, node, _| raw.context_reuse.set_with(node, |node| node.number())),
    record::size("js_context_reuse_max_size", ALL)
        .default("4m")
        .since("0.9.5 of njs")
        .doc("Has no effect: js_memory limits the memory of every context.")
        .set(|raw, node, _| {
            raw.context_reuse_max_size_span = Some(node.span);
            raw.context_reuse_max_size.set_size(node)
        }),
    record::time("js_timeout", ALL)
        .default("100ms")
        .since("Tailwater 0.2")
        .doc("CPU time that a function of a script may use until it returns or waits; then it is ended.")
        .set(|raw, node, _| raw.timeout.set_msec(node)),
    record::size("js_memory", ALL)
        .default("16m")
        .since("Tailwater 0.2")
        .doc("Memory that the scripts of one request may use.")
        .set(|raw, node, _| raw.memory.set_size(node)),
    record::number("js_processes", HTTP | STREAM)
        .default("one for each worker")
        .since("Tailwater 0.2")
        .doc("Number of processes that run scripts.")
        .set(|raw, node, _| {
            raw.processes.set_with(node, |node| match node.number()? {
                count @ 1..=PROCESSES_MAX => Ok(count),
                _ => Err(node.error(&format!("must be between 1 and {PROCESSES_MAX}"))),
            })
        }),
    record::new("js_program", "path", HTTP | STREAM, Args::exact(1))
        .default("tailwater-scripts")
        .since("Tailwater 0.2")
        .doc("The program that runs scripts; by default the one beside the server.")
        .set(|raw, node, _| raw.program.set_once(node, node.arg(0)?.clone())),
    record::new("js_set", "$variable function [nocache]", ALL, Args::range(2, 3))
        .since("0.2.0 of njs")
        .doc("A variable whose value a function computes; with nocache for each use anew.")
        .set(|raw, node, _| {
            raw.sets.push(RawSet::read(node)?);
            Ok(())
        }),
    record::new("js_var", "$variable [value]", ALL, Args::range(1, 2))
        .since("0.5.3 of njs")
        .doc("A variable that scripts may change.")
        .set(|raw, node, _| {
            let word = node.arg(0)?;
            let variable = tw_module_support::block::variable_name(node, word)?;
            raw.vars.push(RawVar { variable, value: node.args.get(1).cloned(), span: word.span });
            Ok(())
        }),
    record::new(
        "js_shared_dict_zone",
        "zone=name:size [timeout=time] [type=string | number] [evict] [state=file]",
        HTTP | STREAM,
        Args::at_least(1),
    )
    .since("0.8.0 of njs")
    .doc("A dictionary that all scripts share.")
    .set(|raw, node, _| {
        raw.dictionaries.push(RawDictionary::read(node)?);
        Ok(())
    }),
    record::time("js_fetch_timeout", ALL)
        .default("60s")
        .since("0.7.4 of njs")
        .doc("Time of each wait of a request of ngx.fetch(); the whole request takes at most ten times as long.")
        .set(|raw, node, _| raw.fetch.timeout.set_msec(node)),
    record::size("js_fetch_buffer_size", ALL)
        .default("16k")
        .since("0.7.4 of njs")
        .doc("Largest head of a response to ngx.fetch().")
        .set(|raw, node, _| raw.fetch.buffer_size.set_size(node)),
    record::size("js_fetch_max_response_buffer_size", ALL)
        .default("1m")
        .since("0.7.4 of njs")
        .doc("Largest body of a response to ngx.fetch().")
        .set(|raw, node, _| raw.fetch.response_max.set_size(node)),
    record::flag("js_fetch_verify", ALL)
        .default("on")
        .since("0.7.4 of njs")
        .doc("Verifies the certificates of servers of ngx.fetch().")
        .set(|raw, node, _| raw.fetch.verify.set_flag(node)),
    record::number("js_fetch_verify_depth", ALL)
        .default("100")
        .since("0.7.0 of njs")
        .doc("Certificates between that of a server of ngx.fetch() and that of an authority, at most.")
        .set(|raw, node, _| raw.fetch.verify_depth.set_with(node, |node| node.number())),
    record::new("js_fetch_trusted_certificate", "file", ALL, Args::exact(1))
        .since("0.7.0 of njs")
        .doc("Certificates of authorities for servers of ngx.fetch(); by default those of the system.")
        .set(|raw, node, _| raw.fetch.trusted_certificate.set_once(node, node.arg(0)?.clone())),
    record::new("js_fetch_protocols", "[TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]", ALL, Args::at_least(1))
        .default("TLSv1.2 TLSv1.3")
        .since("0.7.0 of njs")
        .doc("Versions of TLS for servers of ngx.fetch().")
        .set(|raw, node, _| raw.fetch.protocols.set_once(node, node.args.clone())),
    record::new("js_fetch_ciphers", "ciphers", ALL, Args::exact(1))
        .since("0.7.0 of njs")
        .doc("Ciphers for servers of ngx.fetch(), with the names of OpenSSL.")
        .set(|raw, node, _| raw.fetch.ciphers.set_once(node, node.arg(0)?.clone())),
    record::new("js_fetch_proxy", "url", ALL, Args::exact(1))
        .since("0.9.4 of njs")
        .doc("Forward proxy of requests of ngx.fetch(), http://user:password@host:port; an empty value is none.")
        .set(|raw, node, _| raw.fetch.proxy.set_once(node, node.arg(0)?.clone())),
    record::number("js_fetch_keepalive", ALL)
        .default("0")
        .since("0.9.2 of njs")
        .doc("Connections of ngx.fetch() that each worker keeps for later requests.")
        .set(|raw, node, _| raw.fetch.keepalive.set_with(node, |node| node.number())),
    record::number("js_fetch_keepalive_requests", ALL)
        .default("1000")
        .since("0.9.2 of njs")
        .doc("Requests on one connection of ngx.fetch().")
        .set(|raw, node, _| raw.fetch.keepalive_requests.set_with(node, |node| node.number())),
    record::time("js_fetch_keepalive_time", ALL)
        .default("1h")
        .since("0.9.2 of njs")
        .doc("Age after which a connection of ngx.fetch() is not kept any more.")
        .set(|raw, node, _| raw.fetch.keepalive_time.set_msec(node)),
    record::time("js_fetch_keepalive_timeout", ALL)
        .default("60s")
        .since("0.9.2 of njs")
        .doc("Time for which an idle connection of ngx.fetch() is kept.")
        .set(|raw, node, _| raw.fetch.keepalive_timeout.set_msec(node)),
    record::new("js_content", "function", REQUESTS, Args::exact(1))
        .since("0.2.0 of njs")
        .doc("A function answers.")
        .set(|raw, node, _| raw.content.set_once(node, node.arg(0)?.clone())),
    record::new("js_access", "function", REQUESTS | SESSIONS, Args::exact(1))
        .since("0.4.0 of njs, in http 0.9.9")
        .doc("A function decides whether a request or session may go on.")
        .set(|raw, node, _| raw.access.set_once(node, node.arg(0)?.clone())),
    record::new("js_preread", "function", SESSIONS, Args::exact(1))
        .since("0.4.0 of njs")
        .doc("A function looks at the first bytes of a client, and decides whether its session may go on.")
        .set(|raw, node, _| raw.preread.set_once(node, node.arg(0)?.clone())),
    record::new("js_filter", "function", SESSIONS, Args::exact(1))
        .since("0.4.0 of njs")
        .doc("A function changes the bytes of sessions, in both directions.")
        .set(|raw, node, _| raw.filter.set_once(node, node.arg(0)?.clone())),
    record::new(
        "js_periodic",
        "function [interval=time] [jitter=time] [worker_affinity=all | mask]",
        LOCATION | STREAM_SERVER,
        Args::at_least(1),
    )
    .since("0.8.1 of njs")
    .doc("A function is called in intervals, by default every five seconds on the first worker.")
    .set(|raw, node, _| {
        raw.periodics.push(RawPeriodic::read(node)?);
        Ok(())
    }),
    record::new("js_header_filter", "function", REQUESTS, Args::exact(1))
        .since("0.5.1 of njs")
        .doc("A function changes the head of responses.")
        .set(|raw, node, _| raw.header_filter.set_once(node, node.arg(0)?.clone())),
    record::new("js_body_filter", "function [buffer_type=string | buffer]", REQUESTS, Args::range(1, 2))
        .since("0.5.2 of njs")
        .doc("A function changes the body of responses, piece by piece.")
        .set(|raw, node, _| raw.body_filter.set_with(node, RawBodyFilter::read)),
];
