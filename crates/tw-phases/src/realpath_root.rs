//! `$realpath_root`: asked of the disk before the handlers of a location that mentions it run, because no variable waits.

use std::ffi::CString;

use tw_log::Level;

use tw_request::request::Request;

/// Sets `r.route.realpath_root` for the current plan; on a failure it is missing, and the error log says why. Waits for the disk.
// DIFF(nginx): asked before the handlers run, so that a request which was refused before that does not have it in its log.
pub(super) async fn fill(r: &mut Request) {
    r.route.realpath_root = None;
    let mut path = Vec::new();
    r.plan().core.root.path.eval(r, &mut path);
    // A NUL in it, which no file name has, leaves an empty name: it cannot be found.
    let path = CString::new(path).unwrap_or_default();
    let Some(disk) = r.disk().cloned() else { return };
    match disk.realpath(&mut r.costs.account, &path).await {
        Ok(real) => r.route.realpath_root = Some(real.into_bytes()),
        Err(error) => r.log(Level::Crit, format_args!("{}", error.on(&path))),
    }
}

#[cfg(test)]
mod tests {
    use tw_http_testkit::generation;
    use tw_request::vars;

    #[test]
    fn only_locations_with_realpath_root_use_the_disk() {
        let mention = "server_tokens $realpath_root;";
        for (conf, expected) in [
            (
                format!(
                    "server {{ location /a {{ }} location /b {{ {mention} location /b/c {{ }} }} location /d {{ }} }}"
                ),
                "/b /b/c",
            ),
            (format!("{mention} server {{ location /a {{ }} }}"), " /a"),
            (format!("server {{ location /a {{ }} {mention} }} server {{ location /b {{ }} }}"), " /a"),
            ("server { location /a { server_tokens $document_root; } }".to_owned(), ""),
        ] {
            let generation = generation(&conf);
            let mut names: Vec<_> =
                generation.plans.iter().filter(|plan| plan.prepared.has(vars::REALPATH_ROOT)).collect();
            names.sort_by_key(|plan| plan.name.clone());
            let names: Vec<_> = names.iter().map(|plan| String::from_utf8_lossy(&plan.name)).collect();
            assert_eq!(names.join(" "), expected, "{conf}");
        }
    }
}
