//! Users of the broker and their rights.

use anyhow::Result;

use super::Stage;

impl Stage {
    /// Creates a user of the broker with all rights, and returns its name, which is its password.
    pub(crate) fn add_broker_user(&self) -> Result<String> {
        let user = format!("{}-user", self.model);
        self.node()?.ctl(&["add_user", &user, &user])?;
        self.permit(&user, ".*")?;
        Ok(user)
    }

    /// Permits a user to write to the queues and exchanges that match `pattern`, and no others.
    pub(crate) fn permit(&self, user: &str, pattern: &str) -> Result<()> {
        self.node()?.ctl(&["set_permissions", "-p", "/", user, ".*", pattern, ".*"]).map(drop)
    }
}
