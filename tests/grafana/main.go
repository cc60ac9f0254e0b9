// Checks Grafana's file provisioning of alert rules with the types of Grafana's own API, whose export has the
// form of that file. It needs the Go module proxy, so no test runs it; go.sum pins what it is built from.
//
//	go run . FILE...
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/go-openapi/strfmt"
	"github.com/grafana/grafana-openapi-client-go/models"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: FILE...")
	}
	for _, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		check(err)
		// Grafana ignores what it does not know; a mistyped key is to be found here.
		var file models.AlertingFileExport
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		check(decoder.Decode(&file))
		check(file.Validate(strfmt.Default))
		rules := 0
		for _, group := range file.Groups {
			for _, rule := range group.Rules {
				check(known(rule))
				rules++
			}
		}
		fmt.Printf("%s: %d rules in %d groups\n", path, rules, len(file.Groups))
	}
}

// What Grafana's server refuses and its types do not say.
func known(rule *models.AlertRuleExport) error {
	queries := map[string]bool{}
	for _, query := range rule.Data {
		queries[query.RefID] = true
	}
	if rule.UID == "" || len(rule.UID) > 40 || rule.Title == "" || len(rule.Title) > 190 {
		return fmt.Errorf("%q: a uid of 1 to 40 bytes and a title of 1 to 190 are needed", rule.Title)
	}
	if !queries[rule.Condition] {
		return fmt.Errorf("%s: no query is named %q, the condition", rule.Title, rule.Condition)
	}
	return nil
}

func check(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "grafana:", why)
	os.Exit(1)
}
