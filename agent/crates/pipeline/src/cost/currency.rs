//! Currencies by their ISO 4217 codes: those in circulation in 2026.

/// The codes, of three letters each.
const CODES: &str = "\
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF \
CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ \
GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP \
LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR \
PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC \
SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XCD XCG XOF XPF \
YER ZAR ZMW ZWG";

/// Whether a text is the code of a currency.
pub(super) fn is_known(code: &str) -> bool {
    CODES.split(' ').any(|known| known == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_three_capital_letters_that_a_currency_has() {
        assert!(["USD", "EUR", "AED", "ZWG"].iter().all(|code| is_known(code)));
        assert!(!["", "usd", "US", "USD EUR", "XXX", "BTC"].iter().any(|code| is_known(code)));
        assert!(CODES.split(' ').all(|code| code.len() == 3));
    }
}
