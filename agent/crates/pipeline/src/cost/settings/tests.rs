use super::{SECTION, Settings};
use gpuwho_model::config::Tables;

fn error(text: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[cost]\n{text}")).unwrap();
    let tables = Tables::load(Some(file.path()), &[], &[SECTION], &[]);
    match tables.and_then(|tables| Settings::resolve(&tables)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn wrong_prices_are_refused_with_their_key() {
    for (text, key) in [
        ("prices = [{ per_hour = -1 }]", "cost.prices[0].per_hour"),
        ("prices = [{ per_hour = 1 }, { per_hour = nan }]", "cost.prices[1].per_hour"),
        ("prices = [{ per_hour = inf }]", "cost.prices[0].per_hour"),
        ("prices = [{ per_hour = 1e9 }]", "cost.prices[0].per_hour"),
        ("prices = [{ model = \"H100\" }]", "cost.prices[0].per_hour"),
        ("prices = [{ per_hour = 1, currency = \"usd\" }]", "cost.prices[0].currency"),
        ("prices = [{ per_hour = 1, date = \"2026-13-01\" }]", "cost.prices[0].date"),
        ("prices = [{ per_hour = 1, date = \"soon\" }]", "cost.prices[0].date"),
        ("currency = \"BTC\"", "cost.currency"),
        ("energy_price = -0.1", "cost.energy_price"),
        ("pue = 0.9", "cost.pue"),
        ("pue = nan", "cost.pue"),
        ("carbon_intensity = -3", "cost.carbon_intensity"),
        ("carbon_file = \"relative\"", "cost.carbon_file"),
        ("carbon_max_age = \"2\"", "cost.carbon_max_age"),
        ("teams = [{ team = \"a\" }]", "cost.teams[0].team"),
        ("teams = [{ namespace = \"a\" }]", "cost.teams[0].team"),
        ("budgets = [{ team = \"a\", amount = 0 }]", "cost.budgets[0].amount"),
        ("budgets = [{ amount = 1 }]", "cost.budgets[0].team"),
    ] {
        let error = error(text);
        assert!(error.starts_with(&format!("`{key}`: ")), "{text}: {error}");
    }
    let many = vec!["{ per_hour = 1 }"; 1025].join(", ");
    assert!(error(&format!("prices = [{many}]")).contains("more than 1024"));
    assert!(error("prices = [{ per_hour = 1, modle = \"x\" }]").contains("modle"));
}

#[test]
fn common_settings_are_accepted() {
    let text = "prices = [{ model = \"*H100*\", per_hour = 2, date = \"2026-11-01\" }]\n\
                energy_price = 0.15\npue = 1.25\ncarbon_intensity = 0\n\
                teams = [{ team = \"a\", namespace = \"a-*\" }, { pod_label = \"team\" }]\n\
                budgets = [{ team = \"a\", amount = 10, currency = \"EUR\" }]";
    assert_eq!(error(text), "");
}
