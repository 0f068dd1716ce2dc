package runtimefiles

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"sconce.dev/sconce/internal/quote"
)

// Deffile returns the text of a definition file that names the image: the first object of a SIF.
func Deffile(im Image) string {
	header := deffileHeader(im)
	var b strings.Builder
	for _, k := range []string{"bootstrap", "from"} {
		if header[k] != "" {
			fmt.Fprintf(&b, "%s: %s\n", strings.ToUpper(k[:1])+k[1:], header[k])
		}
	}
	b.WriteString("\n# Made by sconce. The image's whole configuration is in " + RecordPath + ".\n")
	return b.String()
}

// deffileHeader is the header of the definition file. A digest alone says which image it is, though not where to get it.
func deffileHeader(im Image) map[string]string {
	from := oneLine(im.Reference)
	if d := string(im.Digest); d != "" && !strings.Contains(from, d) {
		if from != "" {
			from += "@"
		}
		from += d
	}
	if from == "" {
		return map[string]string{"bootstrap": "scratch"}
	}
	return map[string]string{"bootstrap": "docker", "from": from}
}

// labels returns the image's labels and those that Apptainer's builds add. What is missing beside the latter is the version of
// Apptainer, which had no part in this. Times are the image's own.
func labels(im Image) map[string]string {
	all := map[string]string{
		"org.label-schema.schema-version":       "1.0",
		"org.opencontainers.image.architecture": im.Config.Architecture,
		"org.opencontainers.image.variant":      im.Config.Variant,
		"org.opencontainers.image.base.name":    im.Reference,
		"org.opencontainers.image.base.digest":  string(im.Digest),
		"org.label-schema.build-arch":           im.Config.Architecture,
	}
	for k, v := range deffileHeader(im) {
		all["org.label-schema.usage.singularity.deffile."+k] = v
	}
	if t := im.Config.Created.UTC(); !t.IsZero() {
		all["org.opencontainers.image.created"] = t.Format(time.RFC3339)
		all["org.label-schema.build-date"] = buildDate(t)
	}
	maps.DeleteFunc(all, func(_, v string) bool { return v == "" })
	maps.Copy(all, im.Config.Config.Labels)
	return all
}

// buildDate writes a time as Apptainer does, without leading zeros.
func buildDate(t time.Time) string {
	return fmt.Sprintf("%s_%d_%s_%d_%d:%d:%d_UTC", t.Weekday(), t.Day(), t.Month(), t.Year(), t.Hour(), t.Minute(), t.Second())
}

func labelsJSON(f *facts) (string, error) {
	data, err := json.MarshalIndent(labels(f.image), "", "\t")
	if err != nil {
		return "", fmt.Errorf("encode labels: %w", err)
	}
	return string(quote.EscapeJSON(data)), nil
}

// metadata is what apptainer inspect shows (Apptainer, pkg/inspect).
type metadata struct {
	Data struct {
		Attributes attributes `json:"attributes"`
	} `json:"data"`
	Type string `json:"type"`
}

type attributes struct {
	Environment map[string]string `json:"environment,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Runscript   string            `json:"runscript,omitempty"`
	Deffile     string            `json:"deffile,omitempty"`
	Startscript string            `json:"startscript,omitempty"`
}

// Metadata returns the content of inspect-metadata.json, an object of a SIF that saves apptainer inspect from mounting it.
func Metadata(im Image) ([]byte, error) {
	data, err := encodeMetadata(im)
	if err != nil {
		return nil, fmt.Errorf("metadata of the image: %w", err)
	}
	return data, nil
}

func encodeMetadata(im Image) ([]byte, error) {
	f, err := factsOf(im)
	if err != nil {
		return nil, err
	}
	env, err := dockerEnv(f)
	if err != nil {
		return nil, err
	}
	run := ""
	if !f.fromApptainer { // else the image has its own, which is not known here
		if run, err = runscript(f); err != nil {
			return nil, err
		}
	}
	trim := func(s string) string { return strings.TrimRight(s, "\n") } // as apptainer inspect does
	m := metadata{Type: "container"}
	m.Data.Attributes = attributes{
		Environment: map[string]string{
			"/" + dockerEnvPath: trim(env),
			"/" + userEnvPath:   trim("#!/bin/sh\n" + envUser),
		},
		Labels:      labels(im),
		Runscript:   trim(run),
		Deffile:     trim(Deffile(im)),
		Startscript: trim("#!/bin/sh\n" + startScript),
	}
	return json.Marshal(m)
}
