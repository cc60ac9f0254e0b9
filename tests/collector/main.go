// Command collector is the real OpenTelemetry Collector with the few components the end-to-end
// tests need: it receives OTLP over gRPC and HTTP and writes what it understood as JSON lines, or is
// the node's or the gateway's Collector of deploy/collector.
// `collector translate` gives the Prometheus names of metrics, as Prometheus' own library has them.
// `cargo xtask collector` builds it; config.yaml beside this file says how the tests start it.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/cumulativetodeltaprocessor"
	"github.com/open-telemetry/opentelemetry-collector-contrib/processor/filterprocessor"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](
		fileexporter.NewFactory(),
		debugexporter.NewFactory(),
		otlpexporter.NewFactory(),
		otlphttpexporter.NewFactory(),
	)
	if err != nil {
		return otelcol.Factories{}, err
	}
	processors, err := otelcol.MakeFactoryMap[processor.Factory](
		memorylimiterprocessor.NewFactory(),
		batchprocessor.NewFactory(),
		filterprocessor.NewFactory(),
		cumulativetodeltaprocessor.NewFactory(),
	)
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{
		Receivers:  receivers,
		Processors: processors,
		Exporters:  exporters,
		Telemetry:  otelconftelemetry.NewFactory(),
	}, nil
}

// translate reads a metric a line (name, unit and kind, separated by tabs) and prints its name.
func translate() error {
	kinds := map[string]otlptranslator.MetricType{
		"gauge":         otlptranslator.MetricTypeGauge,
		"updowncounter": otlptranslator.MetricTypeNonMonotonicCounter,
		"counter":       otlptranslator.MetricTypeMonotonicCounter,
		"histogram":     otlptranslator.MetricTypeHistogram,
	}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		parts := strings.Split(in.Text(), "\t")
		if len(parts) != 3 {
			return fmt.Errorf("not a name, a unit and a kind: %q", in.Text())
		}
		name, err := namer.Build(otlptranslator.Metric{Name: parts[0], Unit: parts[1], Type: kinds[parts[2]]})
		if err != nil {
			return err
		}
		fmt.Println(name)
	}
	return in.Err()
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "translate" {
		if err := translate(); err != nil {
			fmt.Fprintln(os.Stderr, "collector:", err)
			os.Exit(1)
		}
		return
	}
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{
			Command:     "collector",
			Description: "OpenTelemetry Collector for the tests of gpuwho",
			Version:     "0.159.0",
		},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{
					fileprovider.NewFactory(),
					envprovider.NewFactory(),
					yamlprovider.NewFactory(),
				},
				DefaultScheme: "env",
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}
