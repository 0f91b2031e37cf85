//! `tailwater-scripts run FILE`: a module by hand, without a server. What it logs is printed.

use std::cell::Cell;
use std::io::Write as _;
use std::path::Path;
use std::rc::Rc;

use tw_script::{
    CallId, Effect, Environment, FrameError, Load, LoadError, Module, OperationError, ProcessMessage, Reply,
    Settings, Source, Token,
};

use crate::link::Link;
use crate::realm::Realm;
use crate::watch::Watch;

/// CPU time of a module that is run by hand, in milliseconds.
const TIMEOUT_MS: u32 = 10_000;
/// Memory of it, in bytes.
const MEMORY_SIZE: u64 = 256 << 20;

/// Host of a module that is run by hand: it prints what is logged and has nothing else.
struct Terminal {
    next_token: Cell<Token>,
}

impl Link for Terminal {
    fn send(&self, message: &ProcessMessage) -> Result<(), FrameError> {
        if let ProcessMessage::Effect { effect: Effect::Log { message, .. }, .. } = message {
            let mut out = std::io::stdout().lock();
            // A closed output can be reported to nobody.
            let _ = out.write_all(message).and_then(|()| out.write_all(b"\n"));
        }
        Ok(())
    }

    fn wait(&self, _: CallId, _: Token) -> Result<Reply, OperationError> {
        Err(OperationError::Type("not available without a server".to_owned()))
    }

    fn next_token(&self) -> Token {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        token
    }
}

/// Runs a module, with the modules that it imports by relative paths.
///
/// # Errors
/// A file cannot be read, or the module throws an exception.
pub fn run_file(path: &str) -> Result<(), String> {
    let link: Rc<dyn Link> = Rc::new(Terminal { next_token: Cell::new(1) });
    let watch = Rc::new(Watch::default());
    let mut load = Load {
        script: 1,
        modules: vec![Module { name: String::new(), path: path.to_owned() }],
        sources: vec![read(path)?],
        imports: Vec::new(),
        settings: Settings { timeout_ms: TIMEOUT_MS, memory_size: MEMORY_SIZE, context_reuse_count: 0 },
        environment: Environment { version: env!("CARGO_PKG_VERSION").to_owned(), ..Environment::default() },
    };
    loop {
        match Realm::new(&Rc::new(load.clone()), &link, &watch) {
            Ok(_) => return Ok(()),
            Err(LoadError::MissingImport { referrer, specifier }) => {
                let directory = Path::new(&referrer).parent().unwrap_or(Path::new("."));
                let file = directory.join(&specifier).to_string_lossy().into_owned();
                if !load.sources.iter().any(|source| source.path == file) {
                    load.sources.push(read(&file)?);
                }
                load.imports.push(tw_script::Import { referrer, specifier, path: file });
            }
            Err(LoadError::Exception { file, line, column, message }) => {
                return Err(format!("{file}:{line}:{column}: {message}"));
            }
        }
    }
}

fn read(path: &str) -> Result<Source, String> {
    let text = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(Source { path: path.to_owned(), text: text.into() })
}
