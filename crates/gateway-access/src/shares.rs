//! Amounts of a thing that tenants share, such as memory, and that none of them uses up.

use std::collections::HashMap;
use std::sync::Arc;

use nsbridge_protocol::Tenant;
use parking_lot::Mutex;

/// Amount that tenants share. A tenant has at most half of what the others leave, so that there is
/// always a share for one more.
#[derive(Debug)]
pub struct Shares {
    all: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    tenants: HashMap<Tenant, usize>,
}

impl Shares {
    /// Creates the shares of an amount.
    pub fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, used: Mutex::default() })
    }

    /// Opens an account of a tenant, which has taken nothing yet.
    pub fn account(self: &Arc<Self>, tenant: &Tenant) -> Account {
        Account { shares: self.clone(), tenant: tenant.clone(), taken: Mutex::new(0) }
    }

    fn take(&self, tenant: &Tenant, amount: usize) -> bool {
        let mut used = self.used.lock();
        let own = used.tenants.get(tenant).copied().unwrap_or_default();
        let most = self.all.saturating_sub(used.all - own) / 2;
        if own.saturating_add(amount) > most {
            return false;
        }
        used.all += amount;
        *used.tenants.entry(tenant.clone()).or_default() += amount;
        true
    }

    fn release(&self, tenant: &Tenant, amount: usize) {
        let mut used = self.used.lock();
        used.all -= amount;
        let Some(own) = used.tenants.get_mut(tenant) else { return };
        *own -= amount;
        if *own == 0 {
            used.tenants.remove(tenant);
        }
    }
}

/// Part of a tenant's share. It is given back when the account is dropped.
#[derive(Debug)]
pub struct Account {
    shares: Arc<Shares>,
    tenant: Tenant,
    taken: Mutex<usize>,
}

impl Account {
    /// Returns the tenant of the account.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the amount that the account has taken.
    pub fn taken(&self) -> usize {
        *self.taken.lock()
    }

    /// Takes an amount. Returns false if the tenant's share has none left.
    pub fn take(&self, amount: usize) -> bool {
        // Both locks are taken in this order, here and below.
        let mut taken = self.taken.lock();
        let took = self.shares.take(&self.tenant, amount);
        *taken += if took { amount } else { 0 };
        took
    }

    /// Gives back all but this amount.
    pub fn shrink(&self, amount: usize) {
        let mut taken = self.taken.lock();
        let over = taken.saturating_sub(amount);
        *taken -= over;
        self.shares.release(&self.tenant, over);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;

    #[test]
    fn m1_a_tenant_leaves_a_share_to_the_others() {
        let shares = Shares::new(1024);
        let mut accounts = Vec::new();
        for (tenant, most) in [("a", 512), ("b", 256), ("c", 128), ("d", 64)] {
            // The accounts of one tenant have one share.
            let own = [(); 2].map(|()| shares.account(&tenant.parse().unwrap()));
            let taken = (0..2048).filter(|n| own[n % 2].take(1)).count();
            assert_eq!(taken, most, "{tenant}");
            accounts.push(own);
        }
        accounts[0][0].shrink(6);
        assert_eq!(shares.used.lock().all, 960 - 250);
        drop(accounts);
        let used = shares.used.lock();
        assert_eq!((used.all, used.tenants.len()), (0, 0));
    }
}
