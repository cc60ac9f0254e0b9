//! Metrics of the time that owners have devices for, and of its cost. Money, energy cost and carbon
//! exist only where a price or an intensity is configured.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;
use crate::sample::{Agent, GpuOwner, Host};

dims! {
    /// What an owner did with a device's time.
    TimeUse: attr::TIME_USE {
        /// Its work kept the device busy.
        Used = "used",
        /// The device was allocated to it or, where nobody has it allocated, held by its processes,
        /// and was not busy. Of the owner `unattributed`: nobody had it.
        Idle = "idle",
        /// As `idle`, but no reading shows whether the device was busy.
        Unknown = "unknown",
    }
    /// Where the carbon intensity comes from.
    CarbonSource: attr::CARBON_SOURCE {
        /// The configuration's number.
        Configured = "configured",
        /// The file that another program refreshes.
        File = "file",
    }
    /// Why a receipt was made.
    ReceiptEnd: attr::RECEIPT_END {
        /// The job, pod or unit has ended.
        Ended = "ended",
        /// More receipts were open than the limit, and this owner was inactive the longest.
        Evicted = "evicted",
    }
}

metrics! {
    /// A device's time by owner and use; of each device all owners and uses add up to the time in
    /// which the agent knew of the device (GPU-seconds). Used time is divided like `gpu.owner.busy.time`.
    /// Other time belongs to the owners that the device is allocated to, first to those that used
    /// less than their part, else to the owners of its processes, else to `unattributed`. A MIG
    /// instance is a part of the device by its slices.
    OWNER_TIME: Counter<f64> of GpuOwner, by TimeUse = "gpu.owner.time" ["s"]
        from "gpu.utilization, gpu.process.utilization, gpu.instance.gr_engine.active, allocations";
    /// Price of a device for an hour.
    PRICE: Gauge<f64> of GpuId = "gpu.price" ["{currency}/h"]
        from "[cost] prices";
    /// Cost of a device: its price times its time. The costs of all its owners add up to it.
    DEVICE_COST: Counter<f64> of GpuId = "gpu.cost" ["{currency}"]
        from "gpu.owner.time and gpu.price";
    /// An owner's cost of a device, by use: `gpu.owner.time` times the price. What was idle while
    /// allocated is `idle`; what nobody had or used belongs to the owner `unattributed`.
    OWNER_COST: Counter<f64> of GpuOwner, by TimeUse = "gpu.owner.cost" ["{currency}"]
        from "gpu.owner.time and gpu.price";
    /// Cost of the time for which a device, or a part of it, was allocated to an owner, used or not. Not
    /// a part of `gpu.cost`: the owner may have used less, and others may have used it.
    ALLOCATION_COST: Counter<f64> of GpuOwner = "gpu.allocation.cost" ["{currency}"]
        from "allocations and gpu.price";
    /// Cost of an owner's energy (`gpu.owner.energy`), with the data centre's overhead (PUE).
    ENERGY_COST: Counter<f64> of GpuOwner = "gpu.owner.energy.cost" ["{currency}"]
        from "gpu.owner.energy, [cost] energy_price and pue";
    /// Carbon dioxide of an owner's energy (`gpu.owner.energy`), with the data centre's overhead (PUE).
    CARBON: Counter<f64> of GpuOwner = "gpu.owner.carbon" ["g"]
        from "gpu.owner.energy, [cost] pue and the carbon intensity";
    /// Carbon intensity in use, in grams per kilowatt-hour; absent while its file is too old or wrong and
    /// no number is configured.
    CARBON_INTENSITY: Gauge<f64> of Host, by CarbonSource = "gpu.energy.carbon_intensity" ["{g/kWh}"]
        from "[cost] carbon_intensity or carbon_file";
    /// Devices without a price; absent where no price is configured.
    UNPRICED: Gauge<i64> of Agent = "gpuwho.cost.unpriced" ["{device}"]
        from "[cost] prices and the devices' models";
    /// A team's budget for 30 days, as configured; the same on every host.
    BUDGET: Gauge<f64> of Agent = "gpuwho.cost.budget" ["{currency}"]
        from "[cost] budgets";
    /// Receipts of jobs, pods and units that have not ended.
    RECEIPTS_OPEN: Gauge<i64> of Agent = "gpuwho.receipts.open" ["{receipt}"]
        from "the agent's own count";
    /// Receipts made.
    RECEIPTS: Counter<i64> of Agent, by ReceiptEnd = "gpuwho.receipts" ["{receipt}"]
        from "the agent's own count";
}
