//! Messages of a conversation.

use std::fmt;

use serde_json::{Map, Value};

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Instructions that hold for the whole conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool that the model called.
    Tool,
    /// Any other name that a template knows.
    Other(String),
}

impl Role {
    /// Returns the role's name as templates write it.
    pub fn as_str(&self) -> &str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Role {
    fn from(name: &str) -> Self {
        match name {
            "system" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One message of a conversation.
///
/// # Examples
/// ```
/// use llama_rs::chat::Message;
/// let message = Message::assistant("4").with("reasoning_content", "2 + 2 = 4");
/// assert_eq!(message.content(), "4");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    role: Role,
    content: String,
    fields: Map<String, Value>,
}

impl Message {
    /// Makes a message.
    pub fn new(role: impl Into<Role>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), fields: Map::new() }
    }

    /// Makes a message with instructions.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// Makes a message of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// Makes a message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Adds a field that some templates look at, such as `tool_calls`, `name` or `reasoning_content`.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }

    /// Returns who speaks.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Returns the text.
    pub fn content(&self) -> &str {
        &self.content
    }

    /// The message as templates see it.
    pub(crate) fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("role".into(), self.role.as_str().into());
        map.insert("content".into(), self.content.clone().into());
        map.extend(self.fields.clone());
        Value::Object(map)
    }
}
