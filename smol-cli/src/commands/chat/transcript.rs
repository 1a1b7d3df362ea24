//! Conversations in files, as the JSON list of messages that chat programs share.

use crate::arguments::{check_output, read_text};
use crate::failure::Failure;
use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use smolmaxxing::chat::Message;
use std::path::Path;

#[derive(Serialize, Deserialize)]
struct Entry {
    role: String,
    content: String,
}

/// Writes the messages.
pub fn save(path: &Path, messages: &[Message]) -> Result<()> {
    let entries: Vec<_> = messages
        .iter()
        .map(|message| Entry {
            role: message.role().as_str().to_owned(),
            content: message.content().to_owned(),
        })
        .collect();
    check_output(path, [])?;
    let mut text = serde_json::to_string_pretty(&entries)?;
    text.push('\n');
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads messages.
pub fn load(path: &Path) -> Result<Vec<Message>> {
    let shown = path.display();
    let text = read_text(path)?;
    let entries: Vec<Entry> = serde_json::from_str(&text)
        .with_context(|| Failure::new(format!("{shown} is not a saved conversation")))?;
    Ok(entries.into_iter().map(|entry| Message::new(entry.role.as_str(), entry.content)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let messages = [Message::system("a"), Message::user("b\n\"c\""), Message::assistant("é")];
        save(&path, &messages).unwrap();
        let loaded = load(&path).unwrap();
        assert_eq!(loaded.len(), 3);
        for (loaded, saved) in loaded.iter().zip(&messages) {
            assert_eq!(loaded.role(), saved.role());
            assert_eq!(loaded.content(), saved.content());
        }
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        std::fs::write(&path, "{}").unwrap();
        for path in [path, folder.path().join("missing")] {
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
