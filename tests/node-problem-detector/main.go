// Checks a configuration of node-problem-detector's custom plugins with its own types, then lets its own
// monitor run the plugin and prints what it reports as JSON lines, one for each status. It needs the Go
// module proxy, so no test runs it; go.sum pins what it is built from.
//
//	go run . CONFIG COUNT [PLUGIN ARGUMENTS...]
//
// PLUGIN replaces the path in the configuration, which is one inside of node-problem-detector's pod.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"k8s.io/node-problem-detector/pkg/custompluginmonitor"
	"k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
)

func main() {
	if len(os.Args) < 3 {
		fail("usage: CONFIG COUNT [PLUGIN ARGUMENTS...]")
	}
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	text, err := os.ReadFile(os.Args[1])
	check(err)
	// The detector itself ignores what it does not know; a mistyped key is to be found here.
	var config types.CustomPluginConfig
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	check(decoder.Decode(&config))
	for _, rule := range config.Rules {
		if len(os.Args) > 3 {
			rule.Path, rule.Args = os.Args[3], os.Args[4:]
		}
	}
	// The monitor validates it when it reads it, the plugin's path included.
	file, err := os.CreateTemp("", "npd-*.json")
	check(err)
	defer os.Remove(file.Name())
	check(json.NewEncoder(file).Encode(config))
	check(file.Close())
	monitor := custompluginmonitor.NewCustomPluginMonitorOrDie(file.Name())
	statuses, err := monitor.Start()
	check(err)
	lines := json.NewEncoder(os.Stdout)
	for ; count > 0; count-- {
		check(lines.Encode(<-statuses))
	}
	monitor.Stop()
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "node-problem-detector:", why)
	os.Exit(1)
}
