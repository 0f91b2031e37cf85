//! `tailwater serve`: a directory on the web with one command, and without a configuration file.
//!
//! The configuration is made here and loaded like a file. It suits a developer's machine: the server listens on the
//! loopback interface unless `--listen` names another address, and files whose names begin with a dot are not served.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tw_net::Addr;

use crate::cli::{Absent, Coding, ServeOptions};
use crate::commands::hash_password;
use crate::commands::session::{self, NAME, STDOUT};
use crate::commands::tls::Listening;
use crate::configuration::built_in::{MEDIA_TYPES, PHP_PARAMS};
use crate::configuration::bytes_path::path;
use crate::configuration::conf::Source;
use crate::configuration::memory_file::MemoryFile;
use crate::output::console::{Console, Fault};
use crate::server::Server;

/// Media types of text: they are sent with their charset, and compressed if that is asked for.
const TEXT: &str = "text/css text/csv text/javascript text/markdown text/plain text/xml text/mathml text/vtt \
    text/vnd.wap.wml application/javascript application/rss+xml application/atom+xml application/xhtml+xml";
/// Media types that are compressed besides text.
const COMPRESSIBLE: &str = "application/json application/manifest+json application/geo+json application/wasm \
    image/svg+xml image/bmp image/x-icon font/ttf font/otf application/vnd.ms-fontobject";
/// The page that answers for everything with `--spa`.
const INDEX: &str = "index.html";

/// Serves until it is told to stop.
pub fn serve(server: &dyn Server, options: &ServeOptions) -> ExitCode {
    let prepared = directory(options).and_then(|directory| {
        let listening = Listening::of(options.listen.as_deref(), &options.tls, &[])?;
        let users = options.auth.as_deref().map(users).transpose()?;
        let text = configuration(&directory, &listening, options, users.as_ref())?;
        Ok((directory, text, users, listening))
    });
    match prepared {
        // The password file exists as long as it is held.
        Ok((directory, text, _users, listening)) => {
            let source = Source::text(directory.as_os_str().as_bytes().to_vec(), NAME, text);
            session::run(server, source, &[STDOUT], |addresses, own| {
                let line = |url: &str| format!("Serving {} at {url}", directory.display());
                let secured = listening.greeting(addresses, line);
                secured.unwrap_or_else(|| greeting(&directory, addresses, own, options))
            })
        }
        Err(fault) => {
            Console::new().fault(&fault);
            ExitCode::FAILURE
        }
    }
}

/// First lines of output: URLs, and the clients that can reach them.
fn greeting(directory: &Path, addresses: &[Addr], own: &[IpAddr], options: &ServeOptions) -> String {
    let line = |url: &str| format!("Serving {} at {url}", directory.display());
    session::greeting(
        addresses,
        own,
        line,
        match options.auth {
            None => "Everyone who can reach this machine can read it.",
            Some(_) => {
                "Everyone who can reach this machine and knows the password can read it; http encrypts neither."
            }
        },
    )
}

/// `USER:PASSWORD`; `-` reads it from standard input, because a command line can be read by all users of the machine.
fn users(given: &[u8]) -> Result<MemoryFile, Fault> {
    let mut line = given.to_vec();
    if given == b"-" {
        line = hash_password::read_line()?;
    }
    let refused = || {
        Fault::emerg("\"--auth\" takes USER:PASSWORD")
            .hint("for example --auth me:secret; - reads it from standard input")
    };
    let colon = line.iter().position(|byte| *byte == b':').ok_or_else(refused)?;
    let user = &line[..colon];
    let password = &line[colon + 1..];
    if password.is_empty() {
        return Err(refused());
    }
    let text = tw_modules::password_line(user, password).map_err(|_| refused())?;
    MemoryFile::new("users", &text)
}

fn directory(options: &ServeOptions) -> Result<PathBuf, Fault> {
    let requested = options.directory.as_deref().map_or(Path::new("."), path);
    let refused = |error: &io::Error| Fault::call("open()", &requested.to_string_lossy(), error);
    let full = requested.canonicalize().map_err(|error| refused(&error))?;
    // Listing it now finds out whether we may.
    fs::read_dir(&full).map_err(|error| refused(&error).hint("serve takes the name of a directory"))?;
    Ok(full)
}

/// The configuration for a directory.
fn configuration(
    directory: &Path,
    listening: &Listening,
    options: &ServeOptions,
    users: Option<&MemoryFile>,
) -> Result<Vec<u8>, Fault> {
    let root = session::quoted(directory.as_os_str().as_bytes()).ok_or_else(|| {
        let message = format!("cannot serve \"{}\": its name contains a dollar sign", directory.display());
        Fault::emerg(message).hint("go there and serve a directory in it, or use a link to it")
    })?;
    let php = options.php.as_deref().map(php).transpose()?;
    let missing = match options.absent {
        Absent::Index if php.is_some() => {
            return Err(Fault::emerg("\"--spa\" and \"--php\" are two answers for paths that are not there")
                .hint("with --php that is index.php"));
        }
        _ if php.is_some() => "",
        Absent::Error => "autoindex on;",
        Absent::Index if !directory.join(INDEX).is_file() => {
            let message = format!("\"--spa\" needs {INDEX} in {}", directory.display());
            return Err(
                Fault::emerg(message).hint("it is the page that answers for paths that are not there")
            );
        }
        Absent::Index => "location / { try_files $uri $uri/index.html /index.html; }",
    };
    let coding = match options.coding {
        Coding::Plain => String::new(),
        Coding::Compressed => ["gzip", "brotli", "zstd"]
            .map(|name| format!("{name} on; {name}_types {TEXT} {COMPRESSIBLE};\n    "))
            .concat(),
    };
    let auth =
        users.map(|users| format!("auth_basic \"this directory\"; auth_basic_user_file {};", users.path()));
    let auth = auth.unwrap_or_default();
    let php = php.unwrap_or_default();
    let top = format!(
        "{}
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
",
        session::main_directives()
    );
    let Listening { server, .. } = listening;
    let before = format!(
        "    {MEDIA_TYPES}
    default_type application/octet-stream;
    charset utf-8;
    charset_types {TEXT};
    access_log {STDOUT};
    log_not_found off;
    autoindex_format page;
    autoindex_exact_size off;
    autoindex_localtime on;
    gzip_vary on;
    {coding}{auth}
    server {{
        {server}
        # The whole world may be asked for, but not .git, .env and their like.
        location ~ /\\. {{ return 404; }}
        {missing}{php}
        root "
    );
    Ok([top.as_bytes(), &listening.http, before.as_bytes(), &root, b";\n    }\n}\n"].concat())
}

/// Directives of the server if PHP at this address runs scripts: existing ones, and index.php for other paths.
///
/// `try_files` looks at exactly what is passed on as a script; what follows it in the path is kept, because it is gone from the
/// URI then. Whether PHP looks for a script further up the path (`cgi.fix_pathinfo`) does not matter: there is one.
fn php(address: &[u8]) -> Result<String, Fault> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"$;{}\"'\\#".contains(byte);
    let text = std::str::from_utf8(address)
        .ok()
        .filter(|text| !text.is_empty() && text.bytes().all(|b| is_plain(&b)));
    let address = text.ok_or_else(|| {
        Fault::emerg(format!("\"{}\" in \"--php\" is no address", String::from_utf8_lossy(address)))
            .hint("for example --php unix:/run/php/php-fpm.sock or --php 127.0.0.1:9000")
    })?;
    Ok(format!(
        "index index.php index.html;
        location / {{ try_files $uri $uri/ /index.php$is_args$args; }}
        location ~ \\.php(/|$) {{
            fastcgi_split_path_info ^(.+?\\.php)(/.*|)$;
            set $rest_of_path $fastcgi_path_info;
            try_files $fastcgi_script_name =404;
            {PHP_PARAMS}
            fastcgi_param PATH_INFO $rest_of_path if_not_empty;
            fastcgi_pass {address};
        }}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::TlsOptions;

    fn plain() -> Listening {
        Listening::of(Some(b"127.0.0.1:1"), &TlsOptions::default(), &[]).unwrap()
    }

    #[test]
    fn generated_configuration_is_valid() {
        let users = users(b"me:secret").unwrap();
        let php = Some(b"unix:/run/php.sock".to_vec());
        for (coding, users, php) in [
            (Coding::Plain, None, None),
            (Coding::Compressed, Some(&users), None),
            (Coding::Plain, None, php),
        ] {
            let options = ServeOptions { coding, php, ..ServeOptions::default() };
            let text = configuration(Path::new("/a \"b\" \\c; {d}"), &plain(), &options, users).unwrap();
            let source = Source::text(b"/".to_vec(), NAME, text);
            let loaded =
                source.load(&tw_core::shared_objects::SharedObjects::default(), &Console::new()).unwrap();
            assert_eq!(loaded.config.listens.len(), 1);
        }
        let options = ServeOptions { absent: Absent::Index, ..ServeOptions::default() };
        let refused = configuration(Path::new("/no/such"), &plain(), &options, None).unwrap_err();
        assert_eq!(refused.message, "\"--spa\" needs index.html in /no/such");
        let refused = |absent, address: &[u8]| {
            let options = ServeOptions { absent, php: Some(address.into()), ..ServeOptions::default() };
            configuration(Path::new("/"), &plain(), &options, None).unwrap_err().message
        };
        for bad in ["", "a b", "a;", "$a", "{"] {
            let expected = format!("\"{bad}\" in \"--php\" is no address");
            assert_eq!(refused(Absent::Error, bad.as_bytes()), expected);
        }
        assert!(refused(Absent::Index, b"127.0.0.1:1").contains("\"--spa\" and \"--php\""));
    }

    #[test]
    fn greeting_names_possible_clients() {
        let own = ["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        let said = |address: &str, auth: Option<&str>| {
            let auth = auth.map(|auth| auth.as_bytes().to_vec());
            let options = ServeOptions { auth, ..ServeOptions::default() };
            let address: std::net::SocketAddr = address.parse().unwrap();
            greeting(Path::new("/d"), &[address.into()], &own, &options)
        };
        let open = "Everyone who can reach this machine can read it.\n";
        assert_eq!(said("127.0.0.1:1", None), "Serving /d at http://127.0.0.1:1/\n");
        assert_eq!(
            said("0.0.0.0:1", None),
            format!(
                "Serving /d at http://127.0.0.1:1/\n    from other machines at http://192.0.2.7:1/\n{open}"
            )
        );
        assert_eq!(
            said("[::]:1", None),
            format!(
                "Serving /d at http://[::1]:1/\n    from other machines at http://[2001:db8::7]:1/\n{open}"
            )
        );
        assert_eq!(said("192.0.2.7:1", None), format!("Serving /d at http://192.0.2.7:1/\n{open}"));
        assert!(said("192.0.2.7:1", Some("a:b")).contains("and knows the password"));
    }

    #[test]
    fn users_have_names_and_passwords() {
        for bad in ["", "me", "me:", ":secret", "#me:secret"] {
            assert!(users(bad.as_bytes()).is_err(), "{bad}");
        }
        let users = users(b"me:sec:ret").unwrap();
        let text = fs::read_to_string(users.path()).unwrap();
        assert!(text.starts_with("me:$y$") && !text.contains("sec:ret"), "{text}");
    }
}
