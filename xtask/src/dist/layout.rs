//! Contents of an installation: one list for archive, Debian package, RPM package and `cargo xtask install`. They
//! differ in some directories.

use std::fs;

use super::files::{Content, Files, Role};
use crate::{Failure, root};

/// Directory of relative names that packages build in.
pub(crate) const PREFIX: &str = "/var/lib/tailwater/";
/// Configuration file that packages build in.
pub(crate) const CONFIGURATION: &str = "/etc/tailwater/nginx.conf";

/// Values of a build without these variables.
const PLAIN_PREFIX: &str = "/usr/local/tailwater/";
const PLAIN_CONFIGURATION: &str = "/usr/local/tailwater/conf/nginx.conf";

/// Dashboards and alert rules, below `packaging`.
const MONITORING: [&str; 5] = [
    "grafana/tailwater-overview.json",
    "grafana/tailwater-disks.json",
    "grafana/tailwater-caches.json",
    "grafana/tailwater-upstreams.json",
    "prometheus/alerts.yml",
];

/// Files that the configuration includes.
pub(super) const INCLUDED: &[&str] = &[
    "mime.types",
    "fastcgi_params",
    "fastcgi.conf",
    "uwsgi_params",
    "scgi_params",
    "proxy_params",
    "koi-utf",
    "koi-win",
    "win-utf",
];

/// Kind of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Package of Debian and its relatives.
    Deb,
    /// RPM package.
    Rpm,
    /// Archive, to be copied to `/usr/local` and `/etc`.
    Archive,
    /// Everything below a prefix, for a program that was built from source.
    Local {
        /// Absolute, without a slash at its end.
        prefix: String,
    },
}

/// Parts of an installation that are made, not copied.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The binary, unless only the other files are installed.
    pub(crate) program: Option<Vec<u8>>,
    /// The programs beside it.
    pub(crate) tools: Tools,
    /// Licences of the dependencies.
    pub(crate) notices: String,
    /// Bill of materials; empty in an installation from source.
    pub(crate) sbom: String,
}

/// Binaries of the programs beside the server, as far as they are installed.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// `tailwater-scripts`, which the server starts if a configuration has scripts.
    pub(crate) scripts: Option<Vec<u8>>,
    /// `tailwater-top`.
    pub(crate) top: Option<Vec<u8>>,
    /// `tailwater-slowdisk`.
    pub(crate) slowdisk: Option<Vec<u8>>,
    /// `tailwater-ingress`, for archives, installations from source, and an image of its own. Clusters run images, so packages are without.
    pub(crate) ingress: Option<Vec<u8>>,
}

impl Layout {
    /// Directory of programs, libraries and shared files.
    pub(crate) fn prefix(&self) -> &str {
        match self {
            Self::Deb | Self::Rpm => "/usr",
            Self::Archive => "/usr/local",
            Self::Local { prefix } => prefix,
        }
    }

    /// Path of the binary.
    pub(crate) fn program(&self) -> String {
        let directory = if matches!(self, Self::Deb | Self::Rpm) { "sbin" } else { "bin" };
        format!("{}/{directory}/tailwater", self.prefix())
    }

    /// Path of `tailwater-top`, which needs no administrator.
    fn top(&self) -> String {
        format!("{}/bin/tailwater-top", self.prefix())
    }

    /// Directory of the configuration.
    pub(crate) fn configuration(&self) -> String {
        match self {
            Self::Local { prefix } => format!("{prefix}/tailwater/conf"),
            _ => "/etc/tailwater".to_owned(),
        }
    }

    /// All files, with paths as they are on the machine.
    pub(crate) fn files(&self, parts: &Parts) -> Result<Files, Failure> {
        let mut files = Files::default();
        let configuration = self.configuration();
        let share = format!("{}/share", self.prefix());
        let mut put = |path: String, mode: u32, role: Role, content: Vec<u8>| {
            files.add(path.trim_start_matches('/'), mode, role, Content::File(content));
        };
        if let Some(program) = &parts.program {
            put(self.program(), 0o755, Role::Program, program.clone());
        }
        if let Some(scripts) = &parts.tools.scripts {
            put(format!("{}-scripts", self.program()), 0o755, Role::Program, scripts.clone());
        }
        if let Some(top) = &parts.tools.top {
            put(self.top(), 0o755, Role::Program, top.clone());
        }
        if let Some(slowdisk) = &parts.tools.slowdisk {
            put(format!("{}-slowdisk", self.program()), 0o755, Role::Program, slowdisk.clone());
            let manual = read("packaging/man/tailwater-slowdisk.8")?;
            let path = format!("{share}/man/man8/tailwater-slowdisk.8");
            put(path, 0o644, Role::Program, manual.into_bytes());
        }
        let ingress =
            parts.tools.ingress.as_ref().filter(|_| matches!(self, Self::Archive | Self::Local { .. }));
        if let Some(ingress) = ingress {
            put(format!("{}-ingress", self.program()), 0o755, Role::Program, ingress.clone());
            for (from, to) in
                [("man/tailwater-ingress.8".to_owned(), "man/man8/tailwater-ingress.8".to_owned())]
                    .into_iter()
                    .chain(self.completions("tailwater-ingress"))
            {
                let text = read(&format!("packaging/{from}"))?;
                put(format!("{share}/{to}"), 0o644, Role::Program, text.into_bytes());
            }
            for name in ["ingress.yaml", "gateway.yaml"] {
                let text = read(&format!("packaging/kubernetes/{name}"))?;
                let path = format!("{share}/doc/tailwater/examples/{name}");
                put(path, 0o644, Role::Document, text.into_bytes());
            }
        }
        for name in INCLUDED {
            let text = read(&format!("crates/tailwater/conf/{name}"))?;
            put(format!("{configuration}/{name}"), 0o644, Role::Configuration, text.into_bytes());
        }
        let mut copy = |from: &str, to: String, role: Role| -> Result<(), Failure> {
            put(to, 0o644, role, self.relocate(from, &read(from)?).into_bytes());
            Ok(())
        };
        copy("packaging/nginx.conf", format!("{configuration}/nginx.conf"), Role::Configuration)?;
        copy(
            "packaging/sites/default",
            format!("{configuration}/sites-available/default"),
            Role::Configuration,
        )?;
        copy("packaging/html/index.html", format!("{share}/tailwater/html/index.html"), Role::Program)?;
        let units = format!("{}/lib/systemd/system", self.prefix());
        copy("packaging/systemd/tailwater.service", format!("{units}/tailwater.service"), Role::Program)?;
        copy("packaging/man/tailwater.8", format!("{share}/man/man8/tailwater.8"), Role::Program)?;
        for name in MONITORING {
            copy(&format!("packaging/{name}"), format!("{share}/tailwater/{name}"), Role::Program)?;
        }
        copy("packaging/man/tailwater-top.1", format!("{share}/man/man1/tailwater-top.1"), Role::Program)?;
        for (from, to) in
            ["tailwater", "tailwater-top"].into_iter().flat_map(|program| self.completions(program))
        {
            copy(&format!("packaging/{from}"), format!("{share}/{to}"), Role::Program)?;
        }
        // A script of the packages makes the user.
        if matches!(self, Self::Archive | Self::Local { .. }) {
            let users = format!("{}/lib/sysusers.d/tailwater.conf", self.prefix());
            copy("packaging/sysusers/tailwater.conf", users, Role::Program)?;
        }
        let documents = format!("{share}/doc/tailwater");
        let logrotate = match self {
            Self::Local { .. } => (format!("{documents}/examples/logrotate"), Role::Document),
            _ => ("/etc/logrotate.d/tailwater".to_owned(), Role::Configuration),
        };
        copy("packaging/logrotate/tailwater", logrotate.0, logrotate.1)?;
        for (from, to) in [
            ("LICENSE-MIT", "LICENSE-MIT"),
            ("LICENSE-APACHE", "LICENSE-APACHE"),
            ("CHANGELOG.md", "CHANGELOG.md"),
            ("packaging/systemd/tailwater.socket", "examples/tailwater.socket"),
            ("packaging/kubernetes.yaml", "examples/kubernetes.yaml"),
        ] {
            copy(from, format!("{documents}/{to}"), Role::Document)?;
        }
        if *self == Self::Deb {
            copy("packaging/deb/copyright", format!("{documents}/copyright"), Role::Document)?;
        }
        put(format!("{documents}/THIRD-PARTY"), 0o644, Role::Document, parts.notices.clone().into_bytes());
        if !parts.sbom.is_empty() {
            put(format!("{documents}/sbom.cdx.json"), 0o644, Role::Document, parts.sbom.clone().into_bytes());
        }

        let mut own = vec![
            format!("{configuration}/conf.d"),
            format!("{configuration}/sites-available"),
            format!("{configuration}/sites-enabled"),
            configuration.clone(),
            documents.clone(),
            format!("{documents}/examples"),
            format!("{share}/tailwater"),
            format!("{share}/tailwater/grafana"),
            format!("{share}/tailwater/html"),
            format!("{share}/tailwater/prometheus"),
        ];
        if matches!(self, Self::Deb | Self::Rpm) {
            own.push(PREFIX.trim_end_matches('/').to_owned());
        }
        for directory in own {
            files.add_directory(directory.trim_start_matches('/'), 0o755);
        }
        match self {
            // The group that reads logs is not the same everywhere, so the Debian package sets it when it is installed.
            Self::Deb | Self::Rpm => files.add_directory("var/log/tailwater", 0o750),
            Self::Archive | Self::Local { .. } => {
                let link = format!("{configuration}/sites-enabled/default");
                let to = Content::Link("../sites-available/default".to_owned());
                files.add(link.trim_start_matches('/'), 0o777, Role::Configuration, to);
            }
        }
        Ok(if *self == Self::Archive { files.lift("usr/local") } else { files })
    }

    /// Completions of a program for shells, below `packaging`, and their paths below `share`.
    fn completions(&self, program: &str) -> [(String, String); 3] {
        let zsh = match self {
            Self::Deb => "zsh/vendor-completions",
            _ => "zsh/site-functions",
        };
        let bash = "bash-completion/completions";
        let fish = "fish/vendor_completions.d";
        [
            (format!("completions/{program}.bash"), format!("{bash}/{program}")),
            (format!("completions/_{program}"), format!("{zsh}/_{program}")),
            (format!("completions/{program}.fish"), format!("{fish}/{program}.fish")),
        ]
    }

    /// Text of a file with the paths of this installation instead of those of the Debian package.
    fn relocate(&self, from: &str, text: &str) -> String {
        if from.starts_with("packaging/man/") {
            return match self {
                Self::Local { prefix } => text.replace(PLAIN_PREFIX, &format!("{prefix}/tailwater/")),
                _ => text
                    .replace(PLAIN_CONFIGURATION, CONFIGURATION)
                    .replace("conf/nginx.conf)", &format!("{CONFIGURATION})"))
                    .replace(PLAIN_PREFIX, PREFIX),
            };
        }
        let is_ours = ["nginx.conf", "sites/", "systemd/", "logrotate/"]
            .iter()
            .any(|part| from.starts_with(&format!("packaging/{part}")));
        if !is_ours {
            return text.to_owned();
        }
        // The binary of a plain build looks for its configuration elsewhere, and may not write beside it.
        let command = match self {
            Self::Local { .. } => {
                format!("{} -p {PREFIX} -c {}/nginx.conf", self.program(), self.configuration())
            }
            _ => self.program(),
        };
        text.replace("/usr/sbin/tailwater", &command)
            .replace("/usr/share/tailwater", &format!("{}/share/tailwater", self.prefix()))
            .replace("/etc/tailwater", &self.configuration())
    }
}

/// Text of a file of the repository.
pub(super) fn read(path: &str) -> Result<String, Failure> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(files: &Files, path: &str) -> String {
        let bytes = files.file(path).unwrap_or_else(|| panic!("no {path}"));
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn paths_in_texts_are_those_of_the_installation() {
        let parts = Parts { program: Some(b"x".to_vec()), ..Parts::default() };
        let local = Layout::Local { prefix: "/opt/tw".to_owned() };
        for (layout, unit, start, site, html) in [
            (
                Layout::Deb,
                "usr/lib/systemd/system/tailwater.service",
                "ExecStart=/usr/sbin/tailwater\n",
                "etc/tailwater/sites-available/default",
                "root /usr/share/tailwater/html;",
            ),
            (
                Layout::Archive,
                "lib/systemd/system/tailwater.service",
                "ExecStart=/usr/local/bin/tailwater\n",
                "etc/tailwater/sites-available/default",
                "root /usr/local/share/tailwater/html;",
            ),
            (
                local,
                "opt/tw/lib/systemd/system/tailwater.service",
                "ExecStart=/opt/tw/bin/tailwater -p /var/lib/tailwater/ -c /opt/tw/tailwater/conf/nginx.conf\n",
                "opt/tw/tailwater/conf/sites-available/default",
                "root /opt/tw/share/tailwater/html;",
            ),
        ] {
            let files = layout.files(&parts).unwrap();
            assert!(text(&files, unit).contains(start), "{layout:?}");
            assert!(text(&files, site).contains(html), "{layout:?}");
        }
    }

    #[test]
    fn slowdisk_comes_with_its_manual() {
        let local = Layout::Local { prefix: "/opt/tw".to_owned() };
        for (layout, program, manual) in [
            (local, "opt/tw/bin/tailwater-slowdisk", "opt/tw/share/man/man8/tailwater-slowdisk.8"),
            (Layout::Deb, "usr/sbin/tailwater-slowdisk", "usr/share/man/man8/tailwater-slowdisk.8"),
            (Layout::Archive, "bin/tailwater-slowdisk", "share/man/man8/tailwater-slowdisk.8"),
        ] {
            let files = layout.files(&Parts::default()).unwrap();
            assert!(files.file(program).is_none() && files.file(manual).is_none());
            let tools = Tools { slowdisk: Some(b"x".to_vec()), ..Tools::default() };
            let files = layout.files(&Parts { tools, ..Parts::default() }).unwrap();
            assert_eq!(text(&files, program), "x");
            assert!(text(&files, manual).contains("slowdisk"));
        }
    }

    #[test]
    fn ingress_controller_is_in_archives_and_not_in_packages() {
        let tools = Tools { ingress: Some(b"x".to_vec()), ..Tools::default() };
        let parts = Parts { tools, ..Parts::default() };
        let local = Layout::Local { prefix: "/opt/tw".to_owned() };
        for (layout, below) in [(Layout::Archive, ""), (local, "opt/tw/")] {
            let files = layout.files(&parts).unwrap();
            assert_eq!(text(&files, &format!("{below}bin/tailwater-ingress")), "x");
            assert!(
                text(&files, &format!("{below}share/man/man8/tailwater-ingress.8")).contains(".SH OPTIONS")
            );
            let completions = format!("{below}share/bash-completion/completions/tailwater-ingress");
            assert!(text(&files, &completions).contains("--tcp-services-configmap"));
            let manifest = format!("{below}share/doc/tailwater/examples/ingress.yaml");
            assert!(text(&files, &manifest).contains("kind: Deployment"));
        }
        for layout in [Layout::Deb, Layout::Rpm] {
            assert!(layout.files(&parts).unwrap().iter().all(|(path, _)| !path.contains("ingress")));
        }
    }

    #[test]
    fn manual_of_packages_names_their_configuration() {
        let files = Layout::Rpm.files(&Parts::default()).unwrap();
        let manual = text(&files, "usr/share/man/man8/tailwater.8");
        assert!(manual.contains(CONFIGURATION) && !manual.contains(PLAIN_PREFIX));
        assert!(files.file("usr/sbin/tailwater").is_none());
    }

    #[test]
    fn top_is_a_program_for_every_user() {
        let tools =
            Tools { scripts: Some(b"scripts".to_vec()), top: Some(b"top".to_vec()), ..Tools::default() };
        let parts = Parts { tools, ..Parts::default() };
        let files = Layout::Deb.files(&parts).unwrap();
        assert_eq!(text(&files, "usr/sbin/tailwater-scripts"), "scripts");
        assert_eq!(text(&files, "usr/bin/tailwater-top"), "top");
        assert!(text(&files, "usr/share/man/man1/tailwater-top.1").contains(".SH KEYS"));
        assert!(
            text(&files, "usr/share/bash-completion/completions/tailwater-top").contains("tailwater-top")
        );
    }
}
