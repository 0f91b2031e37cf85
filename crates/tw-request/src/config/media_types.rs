//! `types`: media types by file name extension.

use std::sync::Arc;

use bytes::Bytes;
use foldhash::HashMap;
use tw_conf::{ConfError, Cx, Node};

/// Extension (lower case) to media type.
#[derive(Debug, Default, Clone)]
pub struct MediaTypes(HashMap<Box<[u8]>, Bytes>);

/// Longest extension that is looked up; a longer one has the default type.
const EXTENSION_MAX: usize = 32;

impl MediaTypes {
    /// Types without any `types`: `text/html`, `image/gif`, `image/jpeg`.
    pub fn builtin() -> Arc<Self> {
        let mut types = Self::default();
        for (extension, media_type) in [("html", "text/html"), ("gif", "image/gif"), ("jpg", "image/jpeg")] {
            types.0.insert(extension.as_bytes().into(), Bytes::from_static(media_type.as_bytes()));
        }
        Arc::new(types)
    }

    /// The media type of an extension in any case. Does not allocate.
    pub fn find(&self, extension: &[u8]) -> Option<&Bytes> {
        if !extension.iter().any(u8::is_ascii_uppercase) {
            return self.0.get(extension);
        }
        let mut lower = [0; EXTENSION_MAX];
        let lower = lower.get_mut(..extension.len())?;
        lower.copy_from_slice(extension);
        lower.make_ascii_lowercase();
        self.0.get(&*lower)
    }

    /// Adds the lines of a `types { }` block.
    pub fn add_block(&mut self, node: &Node, cx: &mut Cx<'_>) -> Result<(), ConfError> {
        for line in node.children()? {
            if line.args.is_empty() || line.block.is_some() {
                return Err(line.invalid_count());
            }
            let media_type = Bytes::copy_from_slice(&line.name.bytes);
            for extension in &line.args {
                let key = extension.bytes.to_ascii_lowercase().into_boxed_slice();
                if let Some(old) = self.0.insert(key, media_type.clone()) {
                    cx.warn(
                        extension.span,
                        format!(
                            "duplicate extension \"{extension}\", content type: \"{}\", previous content type: \"{}\"",
                            String::from_utf8_lossy(&media_type),
                            String::from_utf8_lossy(&old)
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}
