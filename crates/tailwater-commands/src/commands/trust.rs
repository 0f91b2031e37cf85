//! `tailwater trust`: makes the system trust the local authority of the user, whose certificates `--tls localhost` shows.

use std::process::ExitCode;

use crate::cli::{TrustChange, TrustOptions};
use crate::commands::authority::{Authority, Store};
use crate::commands::session::print;
use crate::configuration::bytes_path::path;
use crate::output::console::{Console, Fault};

/// Adds the authority to the store, or removes it.
pub fn trust(options: &TrustOptions) -> ExitCode {
    let store = match &options.store {
        Some(directory) => Ok(Store::directory(path(directory).to_owned())),
        None => Store::of_system(),
    };
    match store.and_then(|store| change(&store, options.change)) {
        Ok(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        Err(fault) => {
            Console::new().fault(&fault);
            ExitCode::FAILURE
        }
    }
}

fn change(store: &Store, change: TrustChange) -> Result<String, Fault> {
    let authority = match change {
        TrustChange::Added => Authority::open()?,
        TrustChange::Removed => match Authority::existing()? {
            Some(authority) => authority,
            None => return Ok("There is no local authority.\n".to_owned()),
        },
    };
    let path = store.directory.join(authority.name());
    let is_there = path.symlink_metadata().is_ok();
    if change == TrustChange::Removed && !is_there {
        return Ok(format!("{} is not there: nothing is to be removed.\n", path.display()));
    }
    if !store.is_writable() {
        return Err(by_hand(store, change, &authority));
    }
    match change {
        TrustChange::Added => {
            let path = store.add(&authority.name(), &authority.certificate())?;
            Ok(format!(
                "The local authority is trusted: {}\nBrowsers with stores of their own have to import {}\n",
                path.display(),
                authority.certificate_file().display()
            ))
        }
        TrustChange::Removed => {
            store.remove(&authority.name())?;
            Ok(format!("The local authority is not trusted any more: {} was removed\n", path.display()))
        }
    }
}

/// Tells an administrator the commands to type.
fn by_hand(store: &Store, change: TrustChange, authority: &Authority) -> Fault {
    let path = store.directory.join(authority.name());
    let quoted = |path: &std::path::Path| {
        let text = path.display().to_string();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
        if text.bytes().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
    };
    let first = match change {
        TrustChange::Added => {
            let file = authority.certificate_file();
            format!("sudo install -m 644 {} {}", quoted(&file), quoted(&path))
        }
        TrustChange::Removed => format!("sudo rm {}", quoted(&path)),
    };
    let command = match store.command(change) {
        Some(after) => format!("{first} && sudo {after}"),
        None => first,
    };
    let message = format!("this user may not change {}", store.directory.display());
    Fault::emerg(message).hint(format!("as root: {command}"))
}
